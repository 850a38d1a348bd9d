package supervise

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

var t0 = time.Unix(1000, 0)

func at(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

func TestBackoffDoublesAndQuarantines(t *testing.T) {
	s := New(Limits{Crashes: 9})
	now := t0
	var pauses []time.Duration
	for range 8 {
		if wait, err := s.Start(now); wait != 0 || err != nil || s.State() != Starting {
			t.Fatal(wait, err, s.State())
		}
		if s.Crash(now, "boom") != Restarting {
			t.Fatal(s.State())
		}
		wait, err := s.Start(now)
		if err != nil || s.State() != Restarting {
			t.Fatal("started before the pause was over", err)
		}
		pauses = append(pauses, wait)
		now = now.Add(wait)
	}
	ms := time.Millisecond
	if want := []time.Duration{250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 30000 * ms}; !reflect.DeepEqual(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	if s.Crash(now, "last straw") != Quarantined {
		t.Fatal("ninth crash did not quarantine")
	}
	var q *QuarantineError
	if _, err := s.Start(now.Add(time.Hour)); !errors.As(err, &q) || q.Crashes != 9 || !strings.Contains(err.Error(), "last straw") {
		t.Fatalf("quarantine: %v", err)
	}
	s.Reset()
	if wait, err := s.Start(now); wait != 0 || err != nil {
		t.Fatalf("after reset: %v %v", wait, err)
	}
}

func TestCrashesOutsideTheWindowAreForgotten(t *testing.T) {
	s := New(Limits{})
	for i := range 20 {
		if st := s.Crash(at(float64(i)*151), "x"); st != Restarting {
			t.Fatalf("crash %d, four within ten minutes: %s", i, st)
		}
	}
	if st := s.Crash(at(19*151+1), "x"); st != Quarantined {
		t.Fatalf("fifth within ten minutes: %s", st)
	}
}

func TestLateIsNotDead(t *testing.T) {
	s := New(Limits{Silent: 2 * time.Second})
	s.Start(t0)
	s.Ready()
	w := func(sec, elapsed float64, beat uint64) Verdict {
		v, _ := s.Watch(at(sec), time.Duration(elapsed*float64(time.Second)), 100*time.Millisecond, 30*time.Second, beat)
		return v
	}
	if v := w(0, 0.79, 1); v != Fine || s.State() != Ready {
		t.Fatal(v, s.State())
	}
	if v := w(0.1, 0.81, 1); v != Late || s.State() != Suspect {
		t.Fatal(v, s.State())
	}
	// A moving heart may use the whole deadline.
	for i := range 28 {
		if v := w(1+float64(i), 1+float64(i), uint64(2+i)); v != Late {
			t.Fatal(i, v)
		}
	}
	if v, why := s.Watch(at(30), 30*time.Second, 0, 30*time.Second, 99); v != Kill || !strings.Contains(why, "deadline is 30s") {
		t.Fatal(v, why)
	}
	s.Done()
	if s.State() != Ready {
		t.Fatal("a completed step does not clear the suspicion")
	}
	// A heart that stands still is ended after a while.
	if v := w(40, 1, 5); v != Late {
		t.Fatal(v)
	}
	if v := w(41.9, 2.9, 5); v != Late {
		t.Fatal(v)
	}
	if v, why := s.Watch(at(42), 3*time.Second, 0, 0, 5); v != Kill || !strings.Contains(why, "heartbeat has stood still for 2s") {
		t.Fatal(v, why)
	}
}

func TestIllegalTransitionsAreErrors(t *testing.T) {
	s := New(Limits{})
	if err := s.Ready(); err == nil {
		t.Error("absent became ready")
	}
	if err := s.Drain(); err == nil {
		t.Error("absent became draining")
	}
	for from := range legal {
		for _, to := range legal[from] {
			if to.String() == "" || int(to) >= len(legal) {
				t.Errorf("%s leads to an unknown state %d", State(from), to)
			}
		}
	}
	k, _ := s.Device()
	if k != Unreported {
		t.Error("a device nobody asked is not known")
	}
	s.Start(t0)
	s.Ready()
	if k, _ := s.Device(); k != Healthy {
		t.Error(k)
	}
	s.Crash(t0, "gone")
	if k, why := s.Device(); k != Unhealthy || why != "gone" {
		t.Error(k, why)
	}
}

func TestPoison(t *testing.T) {
	p := NewPoison()
	if got := p.Crash([]uint64{1, 2, 3}); !reflect.DeepEqual(got, []Fate{Retry, Retry, Retry}) {
		t.Fatal(got)
	}
	if got := p.Crash([]uint64{1, 2}); !reflect.DeepEqual(got, []Fate{RunAlone, RunAlone}) {
		t.Fatal(got)
	}
	if p.Alone(3) || !p.Alone(1) || !p.Alone(2) {
		t.Fatal("isolation")
	}
	p.Survived([]uint64{3})
	p.Survived([]uint64{2}) // innocent
	if p.Alone(2) {
		t.Fatal("2 passed its lone run")
	}
	if got := p.Crash([]uint64{1}); !reflect.DeepEqual(got, []Fate{Fail}) {
		t.Fatal(got)
	}
	if p.Alone(1) {
		t.Fatal("a failed request is forgotten")
	}
	if got := p.Crash([]uint64{2, 4}); !reflect.DeepEqual(got, []Fate{RunAlone, Retry}) {
		t.Fatal(got)
	}
	// Isolated but not alone in the step: not proven guilty.
	if got := p.Crash([]uint64{2, 5}); !reflect.DeepEqual(got, []Fate{RunAlone, Retry}) {
		t.Fatal(got)
	}
	for _, id := range []uint64{2, 3, 4, 5} {
		p.Forget(id)
	}
	if p.Len() != 0 {
		t.Fatal("ledger keeps finished requests")
	}
}
