package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func open(t *testing.T, opt Options) *Store {
	t.Helper()
	s, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func record(id, previous string) *Record {
	return &Record{ID: id, Previous: previous, Status: Completed, Response: fmt.Appendf(nil, `{"id":%q,"object":"response"}`, id),
		Input: []byte(`[{"type":"message","role":"user","content":"hello"}]`), Output: []byte(`[{"type":"message","id":"msg_` + id + `"}]`)}
}

func put(t *testing.T, s *Store, r *Record) {
	t.Helper()
	if err := s.Put(r); err != nil {
		t.Fatal(err)
	}
}

// both runs a test in memory and on disk.
func both(t *testing.T, f func(t *testing.T, opt Options)) {
	t.Run("memory", func(t *testing.T) { f(t, Options{}) })
	t.Run("disk", func(t *testing.T) { f(t, Options{Dir: filepath.Join(t.TempDir(), "made", "on demand"), NoSync: true}) })
}

func TestWhatIsPutIsFoundReplacedAndDeleted(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := open(t, opt)
		want := record("resp_1", "")
		want.Created = time.UnixMilli(time.Now().UnixMilli())
		put(t, s, want)
		got, err := s.Get("", "resp_1")
		if err != nil || !bytes.Equal(got.Response, want.Response) || !bytes.Equal(got.Input, want.Input) || !bytes.Equal(got.Output, want.Output) || !got.Created.Equal(want.Created) || got.Status != Completed {
			t.Fatalf("%+v, %v", got, err)
		}
		want.Status, want.Output = Incomplete, []byte(`[]`)
		put(t, s, want)
		if got, err = s.Get("", "resp_1"); err != nil || got.Status != Incomplete || string(got.Output) != "[]" {
			t.Errorf("after replacing: %+v, %v", got, err)
		}
		if st := s.Stats(); st.Records != 1 {
			t.Errorf("%+v", st)
		}
		if err := s.Delete("", "resp_1"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get("", "resp_1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("after deleting: %v", err)
		}
		if err := s.Delete("", "resp_1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleting twice: %v", err)
		}
		if st := s.Stats(); st.Records != 0 || st.Bytes != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestTenantsDoNotSeeEachOther(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := open(t, opt)
		r := record("resp_1", "")
		r.Tenant = "a"
		put(t, s, r)
		if _, err := s.Get("b", "resp_1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("another tenant reads: %v", err)
		}
		if err := s.Delete("b", "resp_1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("another tenant deletes: %v", err)
		}
		if _, err := s.Chain("", "resp_1", 0); !errors.Is(err, ErrNotFound) {
			t.Errorf("no tenant reads: %v", err)
		}
		if _, err := s.Get("a", "resp_1"); err != nil {
			t.Error(err)
		}
	})
}

func TestChains(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := open(t, opt)
		for i := range 5 {
			previous := ""
			if i > 0 {
				previous = fmt.Sprint("resp_", i-1)
			}
			put(t, s, record(fmt.Sprint("resp_", i), previous))
		}
		chain, err := s.Chain("", "resp_4", 0)
		if err != nil || len(chain) != 5 || chain[0].ID != "resp_0" || chain[4].ID != "resp_4" {
			t.Fatalf("%d, %v", len(chain), err)
		}
		var ce *ChainError
		if _, err := s.Chain("", "resp_4", 4); !errors.As(err, &ce) || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "more than 4") {
			t.Errorf("too long: %v", err)
		}
		if err := s.Delete("", "resp_2"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Chain("", "resp_4", 0); !errors.As(err, &ce) || ce.Missing != "resp_2" || !errors.Is(err, ErrNotFound) {
			t.Errorf("broken: %v", err)
		}
		if chain, err := s.Chain("", "resp_1", 0); err != nil || len(chain) != 2 {
			t.Errorf("before the break: %d, %v", len(chain), err)
		}
		loop := record("resp_loop", "resp_loop")
		put(t, s, loop)
		if _, err := s.Chain("", "resp_loop", 0); !errors.As(err, &ce) || ce.Missing != "" {
			t.Errorf("a loop: %v", err)
		}
	})
}

func TestBoundsOfBytesAndAge(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		c := &clock{time.Unix(1_800_000_000, 0)}
		opt.Clock, opt.MaxBytes, opt.MaxAge = c.now, 4096, time.Hour
		s := open(t, opt)
		for i := range 100 {
			put(t, s, record(fmt.Sprint("resp_", i), ""))
			if st := s.Stats(); st.Bytes > opt.MaxBytes {
				t.Fatalf("after %d: %+v", i, st)
			}
		}
		st := s.Stats()
		if st.Evicted == 0 || st.Records+int(st.Evicted) != 100 {
			t.Errorf("%+v", st)
		}
		if _, err := s.Get("", "resp_99"); err != nil {
			t.Errorf("the newest: %v", err)
		}
		if _, err := s.Get("", "resp_0"); !errors.Is(err, ErrNotFound) {
			t.Errorf("the oldest: %v", err)
		}
		var se *SizeError
		big := record("resp_big", "")
		var noise bytes.Buffer
		for i := range 2000 {
			fmt.Fprintf(&noise, "%d,", i*i*7919)
		}
		big.Output = []byte("[" + strings.TrimSuffix(noise.String(), ",") + "]")
		if err := s.Put(big); !errors.As(err, &se) || se.Limit != 4096 {
			t.Errorf("larger than the store: %v", err)
		}
		c.t = c.t.Add(2 * time.Hour)
		if _, err := s.Get("", "resp_99"); !errors.Is(err, ErrNotFound) {
			t.Errorf("expired: %v", err)
		}
		put(t, s, record("resp_new", ""))
		if st := s.Stats(); st.Records != 1 || st.Expired == 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestCancelFlagAndUnfinished(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := open(t, opt)
		running, done := record("resp_run", ""), record("resp_done", "")
		running.Status = InProgress
		put(t, s, running)
		put(t, s, done)
		list, err := s.Unfinished()
		if err != nil || len(list) != 1 || list[0].ID != "resp_run" {
			t.Errorf("%v, %v", list, err)
		}
		for range 2 {
			if r, err := s.SetCancel("", "resp_run"); err != nil || !r.Cancel {
				t.Errorf("%+v, %v", r, err)
			}
		}
		if r, err := s.Get("", "resp_run"); err != nil || !r.Cancel {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := s.SetCancel("", "resp_done"); err != nil || r.Cancel {
			t.Errorf("one that has ended: %+v, %v", r, err)
		}
		if _, err := s.SetCancel("", "resp_none"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
}

func TestBadRecordsAreRefused(t *testing.T) {
	s := open(t, Options{})
	for _, r := range []*Record{{}, {ID: "x", Output: []byte("[")}, {ID: "x", Response: []byte("")}} {
		if err := s.Put(r); err == nil {
			t.Errorf("%+v is stored", r)
		}
	}
	for _, opt := range []Options{{MaxBytes: -1}, {MaxAge: -1}} {
		if _, err := Open(opt); err == nil {
			t.Errorf("%+v opens", opt)
		}
	}
	s.Close()
	if err := s.Put(record("resp_1", "")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := s.Get("", "resp_1"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// fill makes a log with three responses, of which the last is the longest, and gives its bytes and the offset of the last record.
func fill(t *testing.T, dir string) (raw []byte, last int64) {
	t.Helper()
	s := open(t, Options{Dir: dir})
	put(t, s, record("resp_1", ""))
	put(t, s, record("resp_2", "resp_1"))
	last = s.Stats().File
	put(t, s, record("resp_3", "resp_2"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return raw, last
}

func TestReopening(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	s := open(t, Options{Dir: dir})
	if chain, err := s.Chain("", "resp_3", 0); err != nil || len(chain) != 3 {
		t.Errorf("%d, %v", len(chain), err)
	}
	if _, err := Open(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Delete("", "resp_2"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, Options{Dir: dir})
	if _, err := s.Get("", "resp_2"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted response came back: %v", err)
	}
	if _, err := s.Get("", "resp_3"); err != nil {
		t.Error(err)
	}
}

// A crash may leave any part of the last record, and with it zeros that were never written.
func TestTornTailIsDropped(t *testing.T) {
	raw, last := fill(t, t.TempDir())
	for cut := last; cut < int64(len(raw)); cut++ {
		for _, zeros := range []int{0, 7, 300} {
			dir := t.TempDir()
			torn := append(bytes.Clone(raw[:cut]), make([]byte, zeros)...)
			if cut == last && zeros == 0 || cut%5 != 0 && zeros > 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, fileName), torn, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(Options{Dir: dir, NoSync: true})
			if err != nil {
				t.Fatalf("cut at %d of %d with %d zeros: %v", cut, len(raw), zeros, err)
			}
			if st := s.Stats(); st.Records != 2 || st.File != last {
				t.Fatalf("cut at %d: %+v", cut, st)
			}
			put(t, s, record("resp_4", "resp_2"))
			s.Close()
			if s, err = Open(Options{Dir: dir}); err != nil || s.Stats().Records != 3 {
				t.Fatalf("cut at %d, then one more: %v", cut, err)
			}
			s.Close()
		}
	}
}

func TestDamageIsNamed(t *testing.T) {
	raw, last := fill(t, t.TempDir())
	try := func(name string, b []byte, want ...string) {
		t.Helper()
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Dir: dir})
		if err == nil {
			s.Close()
			t.Errorf("%s: it opens", name)
			return
		}
		for _, w := range append(want, path) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", name, err, w)
			}
		}
		if after, rerr := os.ReadFile(path); rerr != nil || !bytes.Equal(after, b) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	flip := func(at int64) []byte {
		b := bytes.Clone(raw)
		b[at] ^= 0x40
		return b
	}
	for at := int64(len(header)); at < last; at += 3 {
		try(fmt.Sprint("a flipped bit at ", at), flip(at), "is damaged", "restore")
	}
	try("another file", []byte("PK\x03\x04 and so on, long enough"), "no file of responses")
	try("a later version", append([]byte("deepinfer-resp\x00\x02"), raw[16:]...), "no file of responses")
}

func TestDamageWhileOpenIsNamed(t *testing.T) {
	dir := t.TempDir()
	_, last := fill(t, dir)
	s := open(t, Options{Dir: dir})
	f, err := os.OpenFile(filepath.Join(dir, fileName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("XXXX"), last+40); err != nil {
		t.Fatal(err)
	}
	var ce *CorruptError
	if _, err := s.Get("", "resp_3"); !errors.As(err, &ce) || ce.Offset != last {
		t.Errorf("%v", err)
	}
	if _, err := s.Get("", "resp_1"); err != nil {
		t.Error(err)
	}
}

func TestAnInterruptedStartLeavesAnEmptyStore(t *testing.T) {
	for n := range len(header) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(header[:n]), 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, Options{Dir: dir, NoSync: true})
		put(t, s, record("resp_1", ""))
		s.Close()
		if s = open(t, Options{Dir: dir}); s.Stats().Records != 1 {
			t.Errorf("%d bytes: %+v", n, s.Stats())
		}
		s.Close()
	}
}

func TestCompaction(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName+".new"), []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Dir: dir, NoSync: true})
	if _, err := os.Stat(filepath.Join(dir, fileName+".new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a crash left is still there: %v", err)
	}
	put(t, s, record("resp_keep", ""))
	rounds, compacted := 0, false
	for before := int64(0); rounds < 20000 && !compacted; rounds++ {
		r := record("resp_again", "resp_keep")
		r.Response = fmt.Appendf(nil, `{"round":%d}`, rounds)
		put(t, s, r)
		size := s.Stats().File
		compacted = size < before
		before = size
	}
	if st := s.Stats(); !compacted || st.Records != 2 || st.File != int64(len(header))+st.Bytes {
		t.Fatalf("after %d rounds: %+v", rounds, st)
	}
	check := func() {
		t.Helper()
		chain, err := s.Chain("", "resp_again", 0)
		if err != nil || len(chain) != 2 || string(chain[1].Response) != fmt.Sprintf(`{"round":%d}`, rounds-1) {
			t.Fatalf("%v, %v", chain, err)
		}
	}
	check()
	if _, err := Open(Options{Dir: dir}); err == nil {
		t.Error("the new file is not locked")
	}
	s.Close()
	s = open(t, Options{Dir: dir})
	check()
}

func TestConcurrentUse(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.NoSync = false
		s := open(t, opt)
		var group sync.WaitGroup
		for w := range 8 {
			group.Go(func() {
				for i := range 20 {
					id := fmt.Sprintf("resp_%d_%d", w, i)
					if err := s.Put(record(id, "")); err != nil {
						t.Error(err)
					}
					if _, err := s.Get("", id); err != nil {
						t.Error(err)
					}
					if i%3 == 0 {
						if err := s.Delete("", id); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		group.Wait()
		if st := s.Stats(); st.Records != 8*13 {
			t.Errorf("%+v", st)
		}
	})
}

func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	s, err := Open(Options{Dir: dir})
	if err != nil {
		f.Fatal(err)
	}
	for _, id := range []string{"resp_1", "resp_2"} {
		if err := s.Put(record(id, "")); err != nil {
			f.Fatal(err)
		}
	}
	s.Close()
	raw, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:len(raw)-3])
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Dir: dir, NoSync: true})
		if err != nil {
			return
		}
		defer s.Close()
		for k := range s.byID {
			if _, err := s.Get(k.tenant, k.id); err != nil && !errors.Is(err, ErrNotFound) {
				t.Logf("%v", err) // a body that is no zstd, say: an error and no panic
			}
		}
	})
}
