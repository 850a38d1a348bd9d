# 64 ranks share the experts: eight machines with eight devices each. Every machine uses this file and sets its own
#
#   DEEPINFER_CLUSTER__NAME=rack1-node3 DEEPINFER_CLUSTER__PARALLEL__RANK=24
#
# (the first of its eight ranks). Machine 0 starts the bus, the others join it.

server {
  listen = "0.0.0.0:8080"
}

model "deepseek-v4.1-flash" {
  path     = "models/DeepSeek-V4.1-Flash"
  backend  = "sm100"
  numerics = "production"
}

backend "sm100" {
  devices  = [0, 1, 2, 3, 4, 5, 6, 7]
  required = true

  step {
    depth = 2
  }
}

scheduler {
  max_rows = 4096
  max_seqs = 256
}

cache {
  disk {
    path       = "kv"
    size       = "4TB"
    write_rate = "200MB"
  }
}

speculation {
  mode   = "dynamic"
  drafts = 5
}

experts {
  placement = "balanced"
  redundant = 64 # one spare slot a rank for copies of hot experts
  period    = "10m"
}

cluster {
  role        = "fused"
  join        = ["rack1-node0.example.com:4222"]
  bus_listen  = "0.0.0.0:4222"
  data_listen = "0.0.0.0:7300"

  parallel {
    data   = 64
    expert = 64
    rank   = 0
  }
}

auth {
  file = "keys.txt"
}
