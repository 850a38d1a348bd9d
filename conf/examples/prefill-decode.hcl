# Two machines: this file is for the one that decodes. The other uses the same file with
#
#   DEEPINFER_CLUSTER__ROLE=prefill DEEPINFER_CLUSTER__NAME=prefill-0 deepinfer serve -c prefill-decode.hcl
#
# Prompts with many new tokens are computed over there and their KV comes back over data_listen; short ones stay here.

server {
  listen = "0.0.0.0:8080"
}

model "deepseek-v4.1-flash" {
  path    = "models/DeepSeek-V4.1-Flash"
  backend = "sm100"
}

backend "sm100" {
  devices  = [0, 1, 2, 3, 4, 5, 6, 7]
  required = true

  step {
    depth = 2
  }
}

scheduler {
  max_rows = 4096 # a decode member; 8192 suits a prefill member
  max_seqs = 256
}

cluster {
  role              = "decode"
  name              = "decode-0"
  bus_listen        = "0.0.0.0:4222" # the embedded bus; or join one: join = ["bus-0.example.com:4222"]
  data_listen       = "0.0.0.0:7300"
  prefill_threshold = 1024
  lease             = "30s"

  parallel {
    data   = 8
    expert = 8
  }
}

auth {
  file = "keys.txt"
}
