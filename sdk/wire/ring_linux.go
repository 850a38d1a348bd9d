package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// ErrFull is returned by Submit when every slot is in use.
var ErrFull = errors.New("step ring: all slots in use")

// ErrInterrupted is returned by WorkerRing.Next after Interrupt.
var ErrInterrupted = errors.New("step ring: interrupted")

// ArenaSpec is the geometry of a step arena: Slots partitions of PartBytes each. The first RequestBytes of a partition are written by the host, the
// rest by the worker; both are multiples of the page size, so no page has two writers.
type ArenaSpec struct {
	ID           uint32
	RequestBytes int64
	PartBytes    int64
}

// Bytes is the size of the whole arena.
func (a ArenaSpec) Bytes() int64 { return a.PartBytes * Slots }

// NewArenaSpec rounds the two parts up to whole pages.
func NewArenaSpec(id uint32, request, reply uint64) ArenaSpec {
	const page = 4096
	up := func(n uint64) int64 { return int64((n + page - 1) / page * page) }
	return ArenaSpec{ID: id, RequestBytes: up(request), PartBytes: up(request) + up(reply)}
}

func (a ArenaSpec) check() error {
	if a.RequestBytes <= 0 || a.PartBytes <= a.RequestBytes || a.RequestBytes%4096 != 0 || a.PartBytes%4096 != 0 || a.PartBytes > 1<<36 {
		return fmt.Errorf("arena %d: partition of %d bytes with %d of request is not a valid layout", a.ID, a.PartBytes, a.RequestBytes)
	}
	return nil
}

type arena struct {
	ArenaSpec
	mem []byte
}

// arenas is a grow-only list indexed by id; readers take it without a lock.
type arenas struct{ list atomic.Pointer[[]*arena] }

func (a *arenas) get(id uint32) *arena {
	if l := a.list.Load(); l != nil && int(id) < len(*l) {
		return (*l)[id]
	}
	return nil
}

func (a *arenas) add(f *os.File, s ArenaSpec) error {
	if err := s.check(); err != nil {
		return err
	}
	var old []*arena
	if l := a.list.Load(); l != nil {
		old = *l
	}
	if int(s.ID) != len(old) {
		return fmt.Errorf("arena %d: the next id is %d", s.ID, len(old))
	}
	mem, err := mapShared(f, s.Bytes())
	if err != nil {
		return fmt.Errorf("arena %d: %w", s.ID, err)
	}
	list := append(append([]*arena(nil), old...), &arena{s, mem})
	a.list.Store(&list)
	return nil
}

func (a *arenas) close() error {
	var err error
	if l := a.list.Swap(nil); l != nil {
		for _, x := range *l {
			err = errors.Join(err, unix.Munmap(x.mem))
		}
	}
	return err
}

// NewMemory makes a sealed memfd of the given size: nobody can shrink or grow it under a mapping.
func NewMemory(name string, bytes int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), "memfd:"+name)
	if err = unix.Ftruncate(fd, bytes); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("memfd %s of %d bytes: %w", name, bytes, err)
	}
	return f, nil
}

// mapShared maps a file read-write after checking that it has at least that many bytes and cannot shrink.
func mapShared(f *os.File, bytes int64) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("fstat %s: %w", f.Name(), err)
	}
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%s is not sealed against shrinking (seals %#x, %v)", f.Name(), seals, err)
	}
	if st.Size < bytes {
		return nil, fmt.Errorf("%s has %d bytes, need %d", f.Name(), st.Size, bytes)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %s, %d bytes: %w", f.Name(), bytes, err)
	}
	return mem, nil
}

// NewRing makes the ring region for one worker life and writes its header.
func NewRing(epoch uint32) (*os.File, error) {
	f, err := NewMemory("deepinfer-ring", RegionBytes)
	if err != nil {
		return nil, err
	}
	var h [offTotal + 8]byte
	le := binary.LittleEndian
	le.PutUint32(h[offMagic:], Magic)
	le.PutUint32(h[offLayout:], LayoutVersion)
	le.PutUint32(h[offEpoch:], epoch)
	le.PutUint32(h[offSlots:], Slots)
	le.PutUint32(h[offSlotBytes:], SlotBytes)
	le.PutUint32(h[offHeader:], HeaderBytes)
	le.PutUint64(h[offTotal:], RegionBytes)
	if _, err := f.WriteAt(h[:], 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("ring header: %w", err)
	}
	return f, nil
}

// region is a mapped ring.
type region struct {
	mem []byte
}

func openRegion(f *os.File) (region, uint32, error) {
	mem, err := mapShared(f, RegionBytes)
	if err != nil {
		return region{}, 0, fmt.Errorf("step ring: %w", err)
	}
	le := binary.LittleEndian
	got := [5]uint32{le.Uint32(mem[offMagic:]), le.Uint32(mem[offLayout:]), le.Uint32(mem[offSlots:]), le.Uint32(mem[offSlotBytes:]), le.Uint32(mem[offHeader:])}
	if want := [5]uint32{Magic, LayoutVersion, Slots, SlotBytes, HeaderBytes}; got != want || le.Uint64(mem[offTotal:]) != RegionBytes {
		unix.Munmap(mem)
		return region{}, 0, fmt.Errorf("step ring: header (magic, layout, slots, slot bytes, header bytes) is %v, this build reads %v", got, want)
	}
	return region{mem}, le.Uint32(mem[offEpoch:]), nil
}

// word is a 32-bit word of the region. Loads and stores are sequentially consistent, which the park protocol needs: a waiter publishes its park flag
// before it looks at the index once more, a writer publishes the index before it looks at the flag, so at least one of them sees the other.
func (r region) word(off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.mem[off])) }

func (r region) readSlot(base int, ticket uint32, s *slotBuf) {
	copy(s[:], r.mem[base+int(ticket%Slots)*SlotBytes:])
}

func (r region) writeSlot(base int, ticket uint32, s *slotBuf) {
	copy(r.mem[base+int(ticket%Slots)*SlotBytes:], s[:])
}

func (r region) close() error { return unix.Munmap(r.mem) }

const (
	futexWait = 0
	futexWake = 1
)

// futexSleep parks the calling thread while *w == seen, for at most d. Spurious returns are fine: callers look again.
func futexSleep(w *atomic.Uint32, seen uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

func futexWakeAll(w *atomic.Uint32) {
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, 1<<30, 0, 0, 0)
}

// sleepOn is one parking: flag up, look again, sleep, flag down. It is the only writer of flag.
func sleepOn(index, flag *atomic.Uint32, seen uint32, d time.Duration) {
	flag.Store(1)
	if index.Load() == seen {
		futexSleep(index, seen, d)
	}
	flag.Store(0)
}

// Monotonic reads CLOCK_MONOTONIC, which both processes share.
func Monotonic() uint64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

// flight is what the host remembers of a submitted step, in its own memory: the region is never asked what was submitted.
type flight struct {
	step     uint64
	program  uint32
	arena    *arena
	start    time.Time
	deadline time.Time
}

// HostRing is the engine's end of a ring.
type HostRing struct {
	region
	epoch  uint32
	policy Policy
	arenas arenas

	head    atomic.Uint32 // submitted; written by Submit
	tail    atomic.Uint32 // results taken; written by Take
	flights [Slots]flight
	result  program.Result
	out, in slotBuf     // private copies: the checksum takes their address, so on the stack they would escape
	woken   atomic.Bool // set by Wake

	expect    expectation // used by Await and Take only
	luck      luck
	lastTaken time.Time
	spinNS    atomic.Int64
	parks     atomic.Int64
}

// OpenHost maps the ring for the engine. The caller keeps ownership of f.
func OpenHost(f *os.File, policy Policy) (*HostRing, error) {
	r, epoch, err := openRegion(f)
	if err != nil {
		return nil, err
	}
	return &HostRing{region: r, epoch: epoch, policy: policy}, nil
}

// Epoch is the worker life this ring belongs to.
func (h *HostRing) Epoch() uint32 { return h.epoch }

// AddArena maps an arena; later steps use it. Ids count from 0. Not concurrent with itself or with Submit.
func (h *HostRing) AddArena(f *os.File, s ArenaSpec) error { return h.arenas.add(f, s) }

// NoSpin makes this side only ever park; before the first Await.
func (h *HostRing) NoSpin() { h.policy.Spin = false }

// Outstanding is the number of steps submitted and not taken.
func (h *HostRing) Outstanding() int { return int(h.head.Load() - h.tail.Load()) }

// Oldest returns the oldest outstanding step: its number and when it was submitted or could have begun. ok is false when nothing is outstanding. For
// the goroutine that takes results.
func (h *HostRing) Oldest() (step uint64, start, deadline time.Time, ok bool) {
	t := h.tail.Load()
	if h.head.Load() == t {
		return 0, time.Time{}, time.Time{}, false
	}
	f := &h.flights[t%Slots]
	start = f.start
	if h.lastTaken.After(start) {
		start = h.lastTaken
	}
	return f.step, start, f.deadline, true
}

// Expected is the moving average of a program's step time, 0 before its first result. For the goroutine that takes results.
func (h *HostRing) Expected() time.Duration {
	t := h.tail.Load()
	if h.head.Load() == t {
		return 0
	}
	return h.expect.get(h.flights[t%Slots].program)
}

// Submit copies a step into the newest arena and rings. The step may be reused by the caller when Submit returns. limit 0 = no deadline. Errors: ErrFull;
// a step that does not fit its partition (nothing was sent).
func (h *HostRing) Submit(s *program.Step, limit time.Duration) error {
	head := h.head.Load()
	if head-h.tail.Load() >= Slots {
		return ErrFull
	}
	list := h.arenas.list.Load()
	if list == nil || len(*list) == 0 {
		return errors.New("step ring: no arena mapped yet; compile a program first")
	}
	a := (*list)[len(*list)-1]
	var m Submission
	if err := m.describe(s); err != nil {
		return err
	}
	if m.PayloadLen > uint64(a.RequestBytes) {
		return fmt.Errorf("step %d: payload of %d bytes, a slot holds %d (sized for the compiled buckets)", s.Seq, m.PayloadLen, a.RequestBytes)
	}
	part := int64(head%Slots) * a.PartBytes
	putStep(a.mem[part:part+int64(m.PayloadLen)], s)
	now := time.Now()
	f := &h.flights[head%Slots]
	*f = flight{step: s.Seq, program: s.Program, arena: a, start: now}
	if limit > 0 {
		f.deadline = now.Add(limit)
		m.Deadline = Monotonic() + uint64(limit)
	}
	m.Ticket, m.Epoch, m.Arena = uint64(head), h.epoch, a.ID
	m.PayloadOff, m.ReplyOff, m.ReplyCap = uint64(part), uint64(part+a.RequestBytes), uint64(a.PartBytes-a.RequestBytes)
	m.encode(&h.out)
	h.writeSlot(offSubmission, head, &h.out)
	h.head.Store(head + 1)
	index := h.word(offSubHead)
	index.Store(head + 1)
	if h.word(offWorkerPark).Load() != 0 {
		futexWakeAll(index)
	}
	return nil
}

// Await waits until the oldest outstanding step has completed, for at most d, and reports whether it has. It follows the waiting policy: parked until
// shortly before the step is expected, then spinning for at most the cap, then parked.
func (h *HostRing) Await(d time.Duration) bool {
	index, flag := h.word(offComHead), h.word(offHostPark)
	until := time.Now().Add(d)
	for {
		tail := h.tail.Load()
		if index.Load() != tail {
			return true
		}
		if h.woken.Swap(false) {
			return false
		}
		now := time.Now()
		left := until.Sub(now)
		if left <= 0 {
			return false
		}
		if h.policy.Spin && h.head.Load() != tail {
			f := &h.flights[tail%Slots]
			start := f.start
			if h.lastTaken.After(start) {
				start = h.lastTaken
			}
			target := h.expect.wakeAt(f.program, start)
			if wait := target.Sub(now); wait > 0 {
				sleepOn(index, flag, tail, min(wait, left))
				h.parks.Add(1)
				if wait < left {
					h.expect.overslept(time.Since(target))
				}
				continue
			}
			if over := now.Sub(target); over < h.policy.SpinCap && !target.IsZero() && h.luck.spin() {
				stop := now.Add(h.policy.SpinCap - over)
				for index.Load() == tail && time.Now().Before(stop) {
				}
				h.luck.learn(index.Load() != tail)
				h.spinNS.Add(int64(time.Since(now)))
				continue
			}
		}
		sleepOn(index, flag, tail, left)
		h.parks.Add(1)
	}
}

// Wake makes a running or the next Await return at once: the worker died, or the caller shuts down.
func (h *HostRing) Wake() {
	h.woken.Store(true)
	futexWakeAll(h.word(offComHead))
}

// Ready reports whether a completion lies in the ring.
func (h *HostRing) Ready() bool { return h.word(offComHead).Load() != h.tail.Load() }

// Take takes the oldest completion. It returns the result, valid until the next Take, or the failure of the step; a *ProtocolError means that the link
// is broken. Call it after Await or Ready said true.
func (h *HostRing) Take() (*program.Result, *backend.Error, error) {
	bad := func(format string, a ...any) (*program.Result, *backend.Error, error) {
		return nil, nil, &ProtocolError{"host", fmt.Sprintf(format, a...)}
	}
	tail, head := h.tail.Load(), h.head.Load()
	if n := h.word(offComHead).Load() - tail; n == 0 || n > head-tail {
		return bad("completion index is %d ahead, %d steps are outstanding", n, head-tail)
	}
	h.readSlot(offCompletion, tail, &h.in)
	var c Completion
	if err := c.decode(&h.in); err != nil {
		return bad("completion %d: %v", tail, err)
	}
	f := &h.flights[tail%Slots]
	a := f.arena
	part := int64(tail%Slots) * a.PartBytes
	need, fits := payloadBytes(c.Len[:], resultElem[:])
	switch {
	case c.Ticket != uint64(tail) || c.Step != f.step || c.Epoch != h.epoch:
		return bad("completion of ticket %d step %d epoch %d, expected ticket %d step %d epoch %d", c.Ticket, c.Step, c.Epoch, tail, f.step, h.epoch)
	case c.Arena != a.ID || c.ReplyOff != uint64(part+a.RequestBytes):
		return bad("completion %d: reply at %d of arena %d is not its partition", tail, c.ReplyOff, c.Arena)
	case !fits || need != c.ReplyLen || need > uint64(a.PartBytes-a.RequestBytes):
		return bad("completion %d: arrays of %d bytes, stated %d, partition has %d", tail, need, c.ReplyLen, a.PartBytes-a.RequestBytes)
	}
	reply := a.mem[c.ReplyOff : c.ReplyOff+need]
	var fail *backend.Error
	if c.Code != 0 {
		fail = loadFailure(&c, reply)
	} else {
		loadResult(&c, reply, &h.result)
	}
	now := time.Now()
	start := f.start
	if h.lastTaken.After(start) {
		start = h.lastTaken
	}
	h.expect.learn(f.program, now.Sub(start))
	h.lastTaken = now
	h.word(offComTail).Store(tail + 1)
	h.tail.Store(tail + 1)
	if fail != nil {
		return nil, fail, nil
	}
	return &h.result, nil, nil
}

// Beats reads the two heartbeat words: the step thread's and the process's.
func (h *HostRing) Beats() (step, process uint32) {
	return h.word(offStepBeat).Load(), h.word(offProcessBeat).Load()
}

// Spent reports time spent spinning and the number of parkings on the host side.
func (h *HostRing) Spent() (spin time.Duration, parks int64) {
	return time.Duration(h.spinNS.Load()), h.parks.Load()
}

// Close unmaps ring and arenas. No other call may run.
func (h *HostRing) Close() error { return errors.Join(h.arenas.close(), h.region.close()) }

// WorkerRing is the worker's end of a ring.
type WorkerRing struct {
	region
	epoch  uint32
	policy Policy
	arenas arenas

	taken       uint32
	completed   uint32
	interrupted atomic.Bool
	buffer      StepBuffer
	slot        slotBuf // private copy of the slot at hand
	job         Submission
	dequeued    uint64
	launched    uint64
	idleSince   time.Time
	gap         time.Duration // moving average of the pause between a completion and the next submission
	broken      error
	luck        luck
	spinNS      atomic.Int64
	parks       atomic.Int64
}

// OpenWorker maps the ring in the worker. The caller keeps ownership of f.
func OpenWorker(f *os.File, policy Policy) (*WorkerRing, error) {
	r, epoch, err := openRegion(f)
	if err != nil {
		return nil, err
	}
	return &WorkerRing{region: r, epoch: epoch, policy: policy}, nil
}

// Epoch is the worker life that the host wrote into the header.
func (w *WorkerRing) Epoch() uint32 { return w.epoch }

// AddArena maps an arena. Not concurrent with itself.
func (w *WorkerRing) AddArena(f *os.File, s ArenaSpec) error { return w.arenas.add(f, s) }

// SetPolicy replaces the waiting policy; before the first Next.
func (w *WorkerRing) SetPolicy(p Policy) { w.policy = p }

// beatEvery bounds the pause between two beats of an idle step thread.
const beatEvery = 100 * time.Millisecond

// Next waits for a submission and returns a private, bounds-checked copy of the step, valid until Complete. ErrInterrupted after Interrupt; *ProtocolError,
// for good, when the host broke the rules. Values inside the step are not judged here: program.Step.Validate does that.
func (w *WorkerRing) Next() (*program.Step, error) {
	if w.broken != nil {
		return nil, w.broken
	}
	index, flag := w.word(offSubHead), w.word(offWorkerPark)
	beat := w.word(offStepBeat)
	began := time.Now()
	for {
		beat.Store(beat.Load() + 1)
		if w.interrupted.Swap(false) {
			return nil, ErrInterrupted
		}
		if index.Load() != w.taken {
			break
		}
		// Spinning pays only while the engine answers within the cap: decoding at full pace.
		if over := time.Since(began); w.policy.Spin && over < w.policy.SpinCap && w.gap < w.policy.SpinCap && w.luck.spin() {
			stop := began.Add(w.policy.SpinCap)
			for index.Load() == w.taken && time.Now().Before(stop) {
			}
			w.luck.learn(index.Load() != w.taken)
			w.spinNS.Add(int64(time.Since(began) - over))
			continue
		}
		sleepOn(index, flag, w.taken, beatEvery)
		w.parks.Add(1)
	}
	if !w.idleSince.IsZero() {
		w.gap += (time.Since(w.idleSince) - w.gap) / 8
	}
	return w.take(index.Load())
}

func (w *WorkerRing) take(head uint32) (*program.Step, error) {
	bad := func(format string, a ...any) (*program.Step, error) {
		w.broken = &ProtocolError{"worker", fmt.Sprintf(format, a...)}
		return nil, w.broken
	}
	if n := head - w.taken; n == 0 || n > Slots || head-w.completed > Slots {
		return bad("submission index is %d ahead of a ring of %d", n, Slots)
	}
	w.dequeued = Monotonic()
	w.readSlot(offSubmission, w.taken, &w.slot)
	m := &w.job
	if err := m.decode(&w.slot); err != nil {
		return bad("submission %d: %v", w.taken, err)
	}
	if m.Ticket != uint64(w.taken) || m.Epoch != w.epoch {
		return bad("submission of ticket %d epoch %d, expected ticket %d epoch %d", m.Ticket, m.Epoch, w.taken, w.epoch)
	}
	a := w.arenas.get(m.Arena)
	if a == nil {
		return bad("submission %d: arena %d is not mapped", w.taken, m.Arena)
	}
	part := uint64(w.taken%Slots) * uint64(a.PartBytes)
	need, fits := payloadBytes(m.Len[:], stepElem[:])
	switch {
	case m.PayloadOff != part || m.ReplyOff != part+uint64(a.RequestBytes) || m.ReplyCap != uint64(a.PartBytes-a.RequestBytes):
		return bad("submission %d: payload at %d, reply at %d+%d are not its partition of arena %d", w.taken, m.PayloadOff, m.ReplyOff, m.ReplyCap, m.Arena)
	case !fits || need != m.PayloadLen || need > uint64(a.RequestBytes):
		return bad("submission %d: arrays of %d bytes, stated %d, partition has %d", w.taken, need, m.PayloadLen, a.RequestBytes)
	case m.TopN > maxElements || m.GridH > maxElements || m.GridW > maxElements || m.Cells > maxElements || m.TableWidth > maxElements || m.KeptTableWidth > maxElements:
		return bad("submission %d: a count is out of range", w.taken)
	}
	step := w.buffer.load(m, a.mem[part:part+need])
	w.taken++
	w.word(offSubTail).Store(w.taken)
	w.launched = Monotonic()
	return step, nil
}

// Complete publishes the result of the step given by Next, or its failure.
func (w *WorkerRing) Complete(r *program.Result, fail *backend.Error) error {
	if w.completed == w.taken {
		return errors.New("step ring: nothing to complete")
	}
	m := &w.job
	a := w.arenas.get(m.Arena)
	c := Completion{Ticket: uint64(w.completed), Step: m.Step, Epoch: w.epoch, Dequeued: w.dequeued, Launched: w.launched, Arena: m.Arena, ReplyOff: m.ReplyOff}
	out := a.mem[m.ReplyOff : m.ReplyOff+m.ReplyCap]
	if r == nil && fail == nil {
		fail = &backend.Error{Op: "step", Msg: "no result", Scope: backend.ScopeStep}
	}
	if err := c.putResult(out, r, fail); err != nil {
		fail = &backend.Error{Op: "step", Msg: err.Error(), Scope: backend.ScopeStep}
		_ = c.putResult(out, nil, fail) // cannot fail: a failure's text is cut to the room
	}
	c.Done = Monotonic()
	c.encode(&w.slot)
	w.writeSlot(offCompletion, w.completed, &w.slot)
	w.completed++
	index := w.word(offComHead)
	index.Store(w.completed)
	if w.word(offHostPark).Load() != 0 {
		futexWakeAll(index)
	}
	w.idleSince = time.Now()
	return nil
}

// Interrupt makes the running or the next Next return ErrInterrupted, once, before it takes another submission. An idle thread may notice only at its next
// beat; a caller in a hurry repeats the call. Safe from any goroutine.
func (w *WorkerRing) Interrupt() {
	w.interrupted.Store(true)
	futexWakeAll(w.word(offSubHead))
}

// Idle reports whether every submission seen in the ring has been completed. Safe from any goroutine.
func (w *WorkerRing) Idle() bool { return w.word(offSubHead).Load() == w.word(offComHead).Load() }

// Beat advances the process heartbeat; for the worker's beat goroutine alone.
func (w *WorkerRing) Beat() { b := w.word(offProcessBeat); b.Store(b.Load() + 1) }

// StepBeat reads the step thread's heartbeat.
func (w *WorkerRing) StepBeat() uint32 { return w.word(offStepBeat).Load() }

// Spent reports time spent spinning and the number of parkings on the worker side. Safe from any goroutine.
func (w *WorkerRing) Spent() (spin time.Duration, parks int64) {
	return time.Duration(w.spinNS.Load()), w.parks.Load()
}

// Close unmaps ring and arenas. No other call may run.
func (w *WorkerRing) Close() error { return errors.Join(w.arenas.close(), w.region.close()) }

// Corrupt writes a submission that no worker may accept, for tests of what follows: every worker must refuse it.
func (h *HostRing) Corrupt() {
	clear(h.out[:])
	head := h.head.Load()
	h.writeSlot(offSubmission, head, &h.out)
	index := h.word(offSubHead)
	index.Store(head + 1)
	futexWakeAll(index)
}
