"""Commands about trained models: python -m user_dir.tools.NAME"""
