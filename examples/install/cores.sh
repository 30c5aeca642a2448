# Sourced: the cores that this process may use. Docker's --cpus and Kubernetes limit the time on them, in cgroup 2's
# cpu.max, which an older nproc does not see.
cores() {  # file with the limit
  local cores quota=max period; cores=$(env -u OMP_NUM_THREADS nproc)
  { read -r quota period < "${1:-/sys/fs/cgroup/cpu.max}"; } 2>/dev/null || true
  if [[ $quota =~ ^[0-9]+$ ]] && ((quota / period < cores)); then cores=$((quota < period ? 1 : quota / period)); fi
  echo "$cores"
}
