# One H200 for a team. `deepinfer model inspect DIR --memory 141GB` says what of a checkpoint fits.
#
# Secrets come from the environment: a file in version control should hold none.

server {
  listen       = "0.0.0.0:8080"
  admin_listen = "127.0.0.1:9090" # /debug: profiles, flight recorder
  max_body     = "256MiB"         # images travel in base64
  cors_origins = ["https://chat.example.com"]
}

model "deepseek-v4.1-flash" {
  path     = "models/DeepSeek-V4.1-Flash" # relative to this file
  backend  = "sm100"
  numerics = "reference"
  context  = 128 * 1024
  aliases  = ["deepseek-chat", "deepseek-reasoner"]
}

backend "sm100" {
  library     = "sm100"
  directories = ["../../bin/backends"]
  devices     = [0]
  required    = true

  step {
    depth    = 2 # hides the host's share of a step
    spin_cap = "200us"
    deadline = "30s"
  }

  restart {
    max    = 5
    window = "10m"
  }

  sandbox {
    network = false
  }

  # Checked against the library's own schema.
  config {
    graph_buckets = [1, 2, 4, 8, 16, 32, 64, 128, 256]
  }
}

scheduler {
  max_rows      = 8192
  max_seqs      = 256
  prefill_chunk = 2048
}

cache {
  prefix {
    scope = "tenant"
  }

  host {
    memory = "128GiB"
  }
}

speculation {
  mode   = "dynamic"
  drafts = 5
}

limits {
  prompt = 120 * 1024

  tenant {
    concurrent = 32
    requests   = 600
  }
}

auth {
  file = "keys.txt" # NAME:KEY, one a line
}

log {
  format = "json"
}

telemetry {
  endpoint = "http://127.0.0.1:4318"
  sampling = 0.01
}
