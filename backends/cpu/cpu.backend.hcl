# The CPU backend: every processor of the host as one device.
name    = "cpu"
version = "0.1.0"
abi     = "1.0"
library = "cpu.so"
licence = "Apache-2.0"

requires {
  os   = ["linux"]
  arch = ["amd64", "arm64"]
}
