# A laptop: the demo model inside the binary, on the CPU, reachable from this machine only.
#
#   deepinfer serve -c conf/examples/laptop.hcl

server {
  listen = "127.0.0.1:8080"

  # Browser pages of other origins may not call in unless they are named here.
  # cors_origins = ["http://localhost:3000"]
}

# The label is the name that clients send. Without a path it is the embedded demo model.
model "spark-mini" {
  aliases  = ["default"]
  thinking = "auto" # the rule of the API that the request came through
}

# The vectorised library first ...
backend "cpu" {
  order   = 1
  threads = 0 # every core that the process may use
}

# ... and pure Go where no C++ compiler made one.
backend "ref" {
  order      = 2
  accumulate = "float64" # the default here: equals the reference bit for bit; "float32" is about twice as fast
}

scheduler {
  max_rows = 256 # rows of one step: a long prompt is cut into pieces of this size
  max_seqs = 16
}

cache {
  memory = "512MiB"
}

limits {
  max_tokens    = 1024
  queue         = 64
  queue_timeout = "60s"
}

log {
  level = "info"
}
