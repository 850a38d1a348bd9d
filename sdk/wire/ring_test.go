//go:build linux

package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// pair is both ends of a ring in one process, each with mappings of its own.
type pair struct {
	host   *HostRing
	worker *WorkerRing
	spec   ArenaSpec
}

func newPair(t testing.TB, policy Policy) *pair {
	t.Helper()
	f, err := NewRing(7)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &pair{spec: NewArenaSpec(0, 8000, 8000)}
	if p.host, err = OpenHost(f, policy); err != nil {
		t.Fatal(err)
	}
	if p.worker, err = OpenWorker(f, policy); err != nil {
		t.Fatal(err)
	}
	m, err := NewMemory("arena", p.spec.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(p.host.AddArena(m, p.spec), p.worker.AddArena(m, p.spec)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.host.Close(), p.worker.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// sampleStep is a step of two sequences with every field in use; n varies its content.
func sampleStep(n int) *program.Step {
	i := int32(n)
	s := &program.Step{Seq: uint64(100 + n), Program: uint32(n % 3), TopN: 2, Logits: []int32{1, 2}, Input: []uint16{uint16(n), 2, 3},
		Sampling:  []abi.Sampling{{Seed: uint64(n), Pos: 3, Temperature: 0.5, Forced: -1}, {Seed: 9, TopK: 4}},
		KeptIndex: []int32{1, 2}}
	if n%3 == 1 {
		s.Masks, s.MaskWords, s.Biases = []uint32{uint32(n), 0, 7, ^uint32(0)}, 4, []abi.Bias{abi.Block(3), {Id: i, Add: 1.5}, abi.Repeat(4, 1.25)}
		s.Sampling[1].Mask, s.Sampling[1].BiasFirst, s.Sampling[1].BiasCount = 1, 1, 2
	}
	b := func(rows int) program.Batch {
		v := func(n int) []int32 {
			s := make([]int32, n)
			for k := range s {
				s[k] = i + int32(k)
			}
			return s
		}
		return program.Batch{Token: v(rows), Pos: v(rows), Seq: v(rows), Flag: v(rows), ImageRow: v(rows), SeqFirst: v(2), SeqRows: v(2), SeqSlot: v(2), SeqLow: v(2),
			SeqWrite: v(2), Table: v(6), TableWidth: 3, Hist: v(4), HistFlag: v(4)}
	}
	s.Rows = b(3 + n%4)
	if n%2 == 1 {
		s.Kept = b(2)
	} else {
		s.KeptIndex = nil
	}
	return s
}

// normal makes nil and empty slices equal.
func normal(s program.Step) program.Step {
	fix := func(v reflect.Value) {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Slice && f.Len() == 0 {
				f.SetZero()
			}
		}
	}
	fix(reflect.ValueOf(&s).Elem())
	fix(reflect.ValueOf(&s.Rows).Elem())
	fix(reflect.ValueOf(&s.Kept).Elem())
	return s
}

func TestStepsAndResultsCrossUnchanged(t *testing.T) {
	for _, policy := range []Policy{{}, {Spin: true, SpinCap: 50 * time.Microsecond}} {
		p := newPair(t, policy)
		const n = 200
		done := make(chan error, 1)
		go func() {
			var res program.Result
			for i := range n {
				got, err := p.worker.Next()
				if err != nil {
					done <- err
					return
				}
				if want := normal(*sampleStep(i)); !reflect.DeepEqual(normal(*got), want) {
					t.Errorf("step %d arrived as %+v, want %+v", i, normal(*got), want)
				}
				if i%17 == 5 {
					err = p.worker.Complete(nil, &backend.Error{Code: abi.ResourceExhausted, Scope: backend.ScopeProgram, Native: -3, Op: "gemm layers.1", Msg: "no room"})
				} else {
					res.Seq = got.Seq
					res.IDs, res.LogProb = append(res.IDs[:0], got.Rows.Token...), append(res.LogProb[:0], -float32(i))
					res.TopIDs, res.TopLogProb, res.Rows = append(res.TopIDs[:0], 4, 5), append(res.TopLogProb[:0], -1, -2), append(res.Rows[:0], got.Input...)
					err = p.worker.Complete(&res, nil)
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		sent := 0
		for got := range n {
			for sent < n && p.host.Outstanding() < 3 {
				if err := p.host.Submit(sampleStep(sent), time.Second); err != nil {
					t.Fatal(err)
				}
				sent++
			}
			for !p.host.Await(time.Second) {
			}
			res, fail, err := p.host.Take()
			if err != nil {
				t.Fatal(err)
			}
			want := sampleStep(got)
			if got%17 == 5 {
				if fail == nil || *fail != (backend.Error{Code: abi.ResourceExhausted, Scope: backend.ScopeProgram, Native: -3, Op: "gemm layers.1", Msg: "no room"}) {
					t.Fatalf("step %d: failure arrived as %+v", got, fail)
				}
				continue
			}
			if fail != nil || res.Seq != want.Seq || !reflect.DeepEqual(res.IDs, want.Rows.Token) || res.LogProb[0] != -float32(got) || !reflect.DeepEqual(res.TopIDs, []int32{4, 5}) ||
				!reflect.DeepEqual(res.TopLogProb, []float32{-1, -2}) || !reflect.DeepEqual(res.Rows, want.Input) || res.HostNS < 0 {
				t.Fatalf("step %d: result %+v, failure %v", got, res, fail)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestFullRingIsBackPressure(t *testing.T) {
	p := newPair(t, Policy{})
	for i := range Slots {
		if err := p.host.Submit(sampleStep(i), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.host.Submit(sampleStep(9), 0); !errors.Is(err, ErrFull) {
		t.Fatalf("submit to a full ring: %v", err)
	}
	if _, err := p.worker.Next(); err != nil {
		t.Fatal(err)
	}
	if err := p.worker.Complete(&program.Result{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.host.Submit(sampleStep(9), 0); !errors.Is(err, ErrFull) {
		t.Fatalf("a completed step still holds its slot until it is taken: %v", err)
	}
	if _, _, err := p.host.Take(); err != nil {
		t.Fatal(err)
	}
	if err := p.host.Submit(sampleStep(9), 0); err != nil {
		t.Fatal(err)
	}
}

func TestOversizedPayloads(t *testing.T) {
	p := newPair(t, Policy{})
	big := sampleStep(0)
	big.Input = make([]uint16, 1<<20)
	if err := p.host.Submit(big, 0); err == nil || p.host.Outstanding() != 0 {
		t.Fatalf("a step larger than its partition was accepted: %v", err)
	}
	if err := p.host.Submit(sampleStep(0), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.worker.Next(); err != nil {
		t.Fatal(err)
	}
	if err := p.worker.Complete(&program.Result{Rows: make([]uint16, 1<<20)}, nil); err != nil {
		t.Fatal(err)
	}
	if _, fail, err := p.host.Take(); err != nil || fail == nil || fail.Scope != backend.ScopeStep {
		t.Fatalf("a result larger than its partition arrived as %v, %v", fail, err)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	p := newPair(t, Policy{})
	step := sampleStep(1)
	res := program.Result{IDs: []int32{1, 2}, LogProb: []float32{1, 2}, TopIDs: make([]int32, 4), TopLogProb: make([]float32, 4)}
	round := func() {
		if err := p.host.Submit(step, time.Second); err != nil {
			t.Fatal(err)
		}
		got, err := p.worker.Next()
		if err != nil {
			t.Fatal(err)
		}
		res.Seq = got.Seq
		if err := p.worker.Complete(&res, nil); err != nil {
			t.Fatal(err)
		}
		if !p.host.Await(time.Second) {
			t.Fatal("no completion")
		}
		if _, fail, err := p.host.Take(); err != nil || fail != nil {
			t.Fatal(fail, err)
		}
	}
	round()
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// TestCorruptSubmissions flips every byte of a slot and of the index: the worker must refuse or see the same step, never fault.
func TestCorruptSubmissions(t *testing.T) {
	for at := range SlotBytes {
		p := newPair(t, Policy{})
		if err := p.host.Submit(sampleStep(1), 0); err != nil {
			t.Fatal(err)
		}
		p.host.mem[offSubmission+at] ^= 0x41
		_, err := p.worker.Next()
		var pe *ProtocolError
		if !errors.As(err, &pe) || pe.Side != "worker" {
			t.Fatalf("byte %d: %v", at, err)
		}
		if _, again := p.worker.Next(); again != err {
			t.Fatalf("the link recovered by itself: %v", again)
		}
	}
	for _, head := range []uint32{9, 1 << 31, ^uint32(0)} {
		p := newPair(t, Policy{})
		p.host.word(offSubHead).Store(head)
		var pe *ProtocolError
		if _, err := p.worker.Next(); !errors.As(err, &pe) {
			t.Fatalf("index %d: %v", head, err)
		}
	}
}

func TestCorruptCompletions(t *testing.T) {
	complete := func(t *testing.T) *pair {
		p := newPair(t, Policy{})
		if err := p.host.Submit(sampleStep(1), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := p.worker.Next(); err != nil {
			t.Fatal(err)
		}
		if err := p.worker.Complete(&program.Result{IDs: []int32{1}}, nil); err != nil {
			t.Fatal(err)
		}
		return p
	}
	var pe *ProtocolError
	for at := range SlotBytes {
		p := complete(t)
		p.worker.mem[offCompletion+at] ^= 0x10
		if _, _, err := p.host.Take(); !errors.As(err, &pe) || pe.Side != "host" {
			t.Fatalf("byte %d: %v", at, err)
		}
	}
	for _, head := range []uint32{2, 8, ^uint32(0)} {
		p := complete(t)
		p.worker.word(offComHead).Store(head)
		if _, _, err := p.host.Take(); !errors.As(err, &pe) {
			t.Fatalf("index %d: %v", head, err)
		}
	}
	// Lies with a valid checksum.
	for name, lie := range map[string]func(*Completion){
		"ticket": func(c *Completion) { c.Ticket++ }, "step": func(c *Completion) { c.Step++ }, "epoch": func(c *Completion) { c.Epoch++ },
		"arena": func(c *Completion) { c.Arena = 3 }, "offset": func(c *Completion) { c.ReplyOff += 8 }, "length": func(c *Completion) { c.ReplyLen += 8 },
		"huge array": func(c *Completion) { c.Len[arrRows] = ^uint32(0) }, "long array": func(c *Completion) { c.Len[arrRows], c.ReplyLen = 1<<20, 1<<21+8 },
	} {
		p := complete(t)
		var buf slotBuf
		var c Completion
		p.worker.readSlot(offCompletion, 0, &buf)
		if err := c.decode(&buf); err != nil {
			t.Fatal(err)
		}
		lie(&c)
		c.encode(&buf)
		p.worker.writeSlot(offCompletion, 0, &buf)
		if _, _, err := p.host.Take(); !errors.As(err, &pe) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHeaderOfAnotherLayoutIsRefused(t *testing.T) {
	for _, off := range []int64{offMagic, offLayout, offSlots, offSlotBytes, offHeader, offTotal} {
		f, err := NewRing(1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xee}, off); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenWorker(f, Policy{}); err == nil {
			t.Errorf("header byte %d changed and accepted", off)
		}
		f.Close()
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Truncate(RegionBytes); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWorker(plain, Policy{}); err == nil {
		t.Error("a plain file, which may shrink under the mapping, was accepted as ring")
	}
}

func TestInterruptAndWakeEndWaits(t *testing.T) {
	p := newPair(t, Policy{})
	errs := make(chan error, 1)
	go func() {
		_, err := p.worker.Next()
		errs <- err
	}()
	p.worker.Interrupt()
	if err := <-errs; !errors.Is(err, ErrInterrupted) {
		t.Fatalf("interrupted Next: %v", err)
	}
	back := make(chan bool, 1)
	go func() { back <- p.host.Await(time.Hour) }()
	for len(back) == 0 {
		p.host.Wake()
		time.Sleep(time.Millisecond)
	}
	if <-back {
		t.Fatal("Await reported a completion that nobody made")
	}
}

func TestIdleStepThreadBeats(t *testing.T) {
	p := newPair(t, Policy{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.worker.Next()
	}()
	first, _ := p.host.Beats()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if b, _ := p.host.Beats(); b > first+2 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the idle step thread does not beat")
		}
	}
	p.worker.Interrupt()
	<-done
}

func TestFilesCrossByTicket(t *testing.T) {
	host, peer, err := NewFileLink()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	worker, err := OpenFileLink(peer)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	var tickets []uint64
	for i := range 3 {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		f.Write([]byte{byte('a' + i)})
		k, err := host.Send(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		tickets = append(tickets, k)
	}
	for _, i := range []int{2, 0, 1} {
		f, err := worker.Receive(tickets[i], "x", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.NewSectionReader(f, 0, 10))
		if f.Close(); err != nil || string(b) != string(rune('a'+i)) {
			t.Errorf("ticket %d gave %q, %v", tickets[i], b, err)
		}
	}
	if _, err := worker.Receive(99, "x", 10*time.Millisecond); err == nil {
		t.Error("a file that was never sent arrived")
	}
}

func TestFailuresKeepTheirScope(t *testing.T) {
	in := &backend.Error{Code: abi.Unavailable, Scope: backend.ScopeHost, Native: 35, Op: "open", Msg: "driver too old"}
	var out *backend.Error
	if err := FromStatus("Open", ToStatus(in)); !errors.As(err, &out) || *out != *in {
		t.Errorf("%v", out)
	}
}

// FuzzSubmission feeds arbitrary slots, with and without a valid checksum, to the worker: an error or a step, never a fault.
func FuzzSubmission(f *testing.F) {
	var buf slotBuf
	var m Submission
	step := sampleStep(1)
	if err := m.describe(step); err != nil {
		f.Fatal(err)
	}
	m.Epoch = 7
	m.encode(&buf)
	f.Add(buf[:], true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		p := newPair(t, Policy{})
		var s slotBuf
		copy(s[:], b)
		if fix { // a hostile host seals its slots
			binary.LittleEndian.PutUint64(s[0:], 0)
			binary.LittleEndian.PutUint32(s[16:], 7)
			binary.LittleEndian.PutUint64(s[40:], 0)
			binary.LittleEndian.PutUint64(s[56:], uint64(p.spec.RequestBytes))
			binary.LittleEndian.PutUint64(s[64:], uint64(p.spec.PartBytes-p.spec.RequestBytes))
			binary.LittleEndian.PutUint32(s[36:], 0)
			s.seal()
		}
		p.host.writeSlot(offSubmission, 0, &s)
		p.host.word(offSubHead).Store(1)
		if step, err := p.worker.Next(); err == nil {
			prog := &program.Program{Bucket: program.Bucket{Rows: 8, Seqs: 8, Logits: 8}, NHist: 2}
			_ = step.Validate(prog, 4, 4, 100)
			if err := p.worker.Complete(&program.Result{}, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzCompletion is the same for the host.
func FuzzCompletion(f *testing.F) {
	f.Add(make([]byte, SlotBytes), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		p := newPair(t, Policy{})
		if err := p.host.Submit(sampleStep(0), 0); err != nil {
			t.Fatal(err)
		}
		var s slotBuf
		copy(s[:], b)
		if fix {
			binary.LittleEndian.PutUint64(s[0:], 0)
			binary.LittleEndian.PutUint64(s[8:], 100)
			binary.LittleEndian.PutUint32(s[16:], 7)
			binary.LittleEndian.PutUint32(s[56:], 0)
			binary.LittleEndian.PutUint64(s[64:], uint64(p.spec.RequestBytes))
			s.seal()
		}
		p.worker.writeSlot(offCompletion, 0, &s)
		p.worker.word(offComHead).Store(1)
		_, _, _ = p.host.Take()
	})
}

// TestRandomStepsSurviveEncoding compares encode and decode over random lengths. The seed is fixed so that a failure repeats.
func TestRandomStepsSurviveEncoding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var buf StepBuffer
	for range 300 {
		v := func() []int32 {
			s := make([]int32, r.IntN(9))
			for i := range s {
				s[i] = int32(r.Uint32())
			}
			return s
		}
		s := &program.Step{Seq: r.Uint64(), Program: r.Uint32(), TopN: r.IntN(5), GridH: r.IntN(5), GridW: r.IntN(5), Cells: r.IntN(5), KeptIndex: v(), Logits: v()}
		s.Rows = program.Batch{Token: v(), Pos: v(), Seq: v(), Flag: v(), ImageRow: v(), SeqFirst: v(), SeqRows: v(), SeqSlot: v(), SeqLow: v(), SeqWrite: v(), Table: v(), TableWidth: r.IntN(9), Hist: v(), HistFlag: v()}
		if r.IntN(2) == 0 {
			s.Kept = program.Batch{Token: append(v(), 1), Pos: v(), Seq: v(), Table: v(), TableWidth: 2, HistFlag: v()}
		}
		s.Sampling = make([]abi.Sampling, r.IntN(4))
		for i := range s.Sampling {
			s.Sampling[i].Seed, s.Sampling[i].Mask, s.Sampling[i].BiasFirst = r.Uint64(), r.Int32(), r.Int32()
		}
		for range r.IntN(4) {
			s.Masks, s.Biases = append(s.Masks, r.Uint32(), r.Uint32()), append(s.Biases, abi.Bias{Id: r.Int32(), Add: r.Float32()})
		}
		s.MaskWords = r.IntN(3)
		var m, back Submission
		if err := m.describe(s); err != nil {
			t.Fatal(err)
		}
		out := make([]byte, m.PayloadLen)
		putStep(out, s)
		var slot slotBuf
		m.encode(&slot)
		if err := back.decode(&slot); err != nil || back != m {
			t.Fatalf("slot %+v, want %+v (%v)", back, m, err)
		}
		if got := buf.load(&back, out); !reflect.DeepEqual(normal(*got), normal(*s)) {
			t.Fatalf("got %+v\nwant %+v", normal(*got), normal(*s))
		}
	}
}

func TestQuotaText(t *testing.T) {
	for text, want := range map[string]float64{"max 100000\n": 99, "150000 100000": 1.5, "-1 100000": 99, "": 99, "x y": 99} {
		if got := parseMax([]byte(text), 99); got != want {
			t.Errorf("%q: %v CPUs, want %v", text, got, want)
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	for name, policy := range map[string]Policy{"park": {}, "spin": {Spin: true, SpinCap: DefaultSpinCap}} {
		b.Run(name, func(b *testing.B) {
			p := newPair(b, policy)
			end := make(chan struct{})
			go func() {
				defer close(end)
				var res program.Result
				for {
					if _, err := p.worker.Next(); err != nil {
						return
					}
					_ = p.worker.Complete(&res, nil)
				}
			}()
			step := sampleStep(1)
			b.ReportAllocs()
			for b.Loop() {
				if err := p.host.Submit(step, 0); err != nil {
					b.Fatal(err)
				}
				for !p.host.Await(time.Second) {
				}
				if _, _, err := p.host.Take(); err != nil {
					b.Fatal(err)
				}
			}
			p.worker.Interrupt()
			<-end
		})
	}
}
