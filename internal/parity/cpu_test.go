package parity

// cpuDevices are the shared-object devices under test; init in cpu_so_test.go adds what this machine can build.
var cpuDevices []device
