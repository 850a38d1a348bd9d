// Package fault wraps another backend and makes it fail on purpose.
//
// New takes the real backend and a list of rules; tests of recovery in core/engine, plugins and core/sim run on it. A rule is one line: when, "->", what.
//
//	op=gemm layer=3 step=5 -> error device "boom"
//	op=attend,attend_block call=100 times=1 -> hang
//	op=sample step>=20 every=7 -> delay 5ms
//	op=alloc call=3 -> error host "out of memory" code=8
//	step=40 op=head times=1 -> kill
//
// When (all must hold; none = every call):
//
//	op=NAME[,NAME]  an op of op set 1, or open, alloc, free, upload, download, prepare, release, sync; without it: ops only
//	layer=L         3 or mtp.0: the layer named by the weight of this call, or of the last call that had one
//	weight=TEXT     the weight's name contains TEXT
//	step=N, step>=N steps count from 0; one ends at the Sync that follows ops. Every Open starts at 0
//	call=N          the N-th call (from 1) that meets the conditions above
//	every=N         each N-th of those calls
//	times=N         fires at most N times, counted over all devices of this backend: 1 lets a restarted device live
//
// What:
//
//	error SCOPE "text" [code=N]  SCOPE: step, program, device, host. device and host poison the device: every later call fails until a new Open
//	delay DURATION               waits, then runs the call
//	hang                         blocks until Close, then fails with scope device
//	kill                         ends the process at once, as a crash would (Options.Kill replaces it)
//
// The first rule that fires wins. Empty lines and lines that begin with # are skipped.
//
// Concurrency: as backend.Device says; Close may be called while an op hangs.
package fault
