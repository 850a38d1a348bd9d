# One Ascend 950 node.

server {
  listen = "127.0.0.1:8080"
}

model "deepseek-v4.1-flash" {
  path    = "models/DeepSeek-V4.1-Flash"
  backend = "ascend950"
}

backend "ascend950" {
  directories = ["../../bin/backends"]
  devices     = [0]
  required    = true

  # The worker starts with an empty environment; the vendor's runtime needs to be found.
  environment = ["LD_LIBRARY_PATH", "ASCEND_HOME_PATH"]

  sandbox {
    read_paths = ["/usr/local/Ascend"]
  }

  config {
    hccl_buffer_mb = 16
  }
}

scheduler {
  max_rows = 4096
  max_seqs = 128
}
