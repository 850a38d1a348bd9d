package supervise

import (
	"fmt"
	"time"
)

// State of a worker link.
type State uint8

// States. Absent: nothing started yet. Suspect: a step is late and the heartbeat is being watched. Quarantined: crashed too often; stays so until Reset.
const (
	Absent State = iota
	Probing
	Starting
	Ready
	Suspect
	Draining
	Restarting
	Quarantined
)

var stateNames = [...]string{"absent", "probing", "starting", "ready", "suspect", "draining", "restarting", "quarantined"}

// String is the state's word in logs and listings.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Knowledge of a device is three-valued: a worker that has just started has not said anything yet.
type Knowledge uint8

// What is known of the device.
const (
	Unreported Knowledge = iota
	Healthy
	Unhealthy
)

// Limits are the restart rules. Zero values take the defaults.
type Limits struct {
	BackoffMin time.Duration // first pause before a restart; default 0.25 s
	BackoffMax time.Duration // pauses double up to this; default 30 s
	Crashes    int           // this many crashes within Window quarantine the worker; default 5
	Window     time.Duration // default 10 min
	Grace      time.Duration // late margin on top of three times the expected step time; default 500 ms
	Silent     time.Duration // a heartbeat that stood still this long ends a suspect worker; default 5 s
}

// WithDefaults fills zero values.
func (l Limits) WithDefaults() Limits {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&l.BackoffMin, 250*time.Millisecond)
	set(&l.BackoffMax, 30*time.Second)
	set(&l.Window, 10*time.Minute)
	set(&l.Grace, 500*time.Millisecond)
	set(&l.Silent, 5*time.Second)
	if l.Crashes <= 0 {
		l.Crashes = 5
	}
	return l
}

// Supervisor is the life of one worker link.
type Supervisor struct {
	limits  Limits
	state   State
	known   Knowledge
	reason  string
	crashes []time.Time // within the window, oldest first
	next    time.Time   // earliest restart

	beat      uint64 // last heartbeat seen while suspect
	beatSince time.Time
}

// New returns a supervisor in state Absent.
func New(l Limits) *Supervisor { return &Supervisor{limits: l.WithDefaults()} }

// State is the present state.
func (s *Supervisor) State() State { return s.state }

// Device is what is known of the device, and why when it is not healthy.
func (s *Supervisor) Device() (Knowledge, string) { return s.known, s.reason }

// legal lists the transitions that events may make.
var legal = [...][]State{
	Absent:      {Probing, Starting},
	Probing:     {Absent, Starting, Restarting, Quarantined},
	Starting:    {Ready, Restarting, Quarantined, Absent},
	Ready:       {Suspect, Draining, Restarting, Quarantined},
	Suspect:     {Ready, Draining, Restarting, Quarantined},
	Draining:    {Absent, Restarting, Quarantined},
	Restarting:  {Starting, Absent},
	Quarantined: {Absent},
}

func (s *Supervisor) to(n State) error {
	if n == s.state {
		return nil
	}
	for _, l := range legal[s.state] {
		if l == n {
			s.state = n
			return nil
		}
	}
	return fmt.Errorf("supervisor: %s cannot become %s", s.state, n)
}

// Start asks to start or restart the worker at time now. It returns how long to wait first; QuarantineError when it shall not be started.
func (s *Supervisor) Start(now time.Time) (time.Duration, error) {
	if s.state == Quarantined {
		return 0, &QuarantineError{Crashes: len(s.crashes), Window: s.limits.Window, Reason: s.reason}
	}
	if wait := s.next.Sub(now); wait > 0 {
		return wait, nil
	}
	if err := s.to(Starting); err != nil {
		return 0, err
	}
	s.known = Unreported
	return 0, nil
}

// Ready notes that the worker serves: device open, programs compiled.
func (s *Supervisor) Ready() error {
	if err := s.to(Ready); err != nil {
		return err
	}
	s.known, s.reason = Healthy, ""
	return nil
}

// Crash notes that the worker died, was killed or failed to start, and sets the pause before the next start. It returns the new state.
func (s *Supervisor) Crash(now time.Time, reason string) State {
	s.known, s.reason = Unhealthy, reason
	keep := s.crashes[:0]
	for _, t := range s.crashes {
		if now.Sub(t) < s.limits.Window {
			keep = append(keep, t)
		}
	}
	s.crashes = append(keep, now)
	if len(s.crashes) >= s.limits.Crashes {
		s.state = Quarantined
		return s.state
	}
	pause := s.limits.BackoffMin
	for range len(s.crashes) - 1 {
		pause = min(2*pause, s.limits.BackoffMax)
	}
	s.next = now.Add(pause)
	s.state = Restarting
	return s.state
}

// Stop notes a wanted end.
func (s *Supervisor) Stop() { s.state, s.known, s.reason = Absent, Unreported, "" }

// Drain notes that no more steps are submitted.
func (s *Supervisor) Drain() error { return s.to(Draining) }

// Reset lifts a quarantine: an operator acted, or the pinned library changed.
func (s *Supervisor) Reset() {
	s.crashes, s.next, s.reason, s.known = nil, time.Time{}, "", Unreported
	if s.state == Quarantined || s.state == Restarting {
		s.state = Absent
	}
}

// Verdict on a late step.
type Verdict uint8

// Verdicts: Fine, go on waiting; Late, the link is suspect and watched; Kill, end the worker.
const (
	Fine Verdict = iota
	Late
	Kill
)

// Watch judges a step that has been running for elapsed, where expected is its usual time (0 = unknown: only the deadline counts) and beat the worker's
// process heartbeat. deadline 0 = none. A step is late after three times its usual time plus the grace; a late worker whose heart stands still is ended, one that lives may use its whole deadline. The string says why
// for Kill.
func (s *Supervisor) Watch(now time.Time, elapsed, expected, deadline time.Duration, beat uint64) (Verdict, string) {
	if deadline > 0 && elapsed >= deadline {
		return Kill, fmt.Sprintf("the step ran for %s, its deadline is %s", elapsed.Round(time.Millisecond), deadline)
	}
	// Without a known time a stopped process is still noticed, after the grace alone.
	if elapsed < 3*expected+s.limits.Grace {
		return Fine, ""
	}
	if s.state != Suspect {
		if s.to(Suspect) != nil {
			return Fine, ""
		}
		s.beat, s.beatSince = beat, now
		return Late, ""
	}
	if beat != s.beat {
		s.beat, s.beatSince = beat, now
		return Late, ""
	}
	if quiet := now.Sub(s.beatSince); quiet >= s.limits.Silent {
		return Kill, fmt.Sprintf("the step ran for %s and the worker's heartbeat has stood still for %s", elapsed.Round(time.Millisecond), quiet.Round(time.Millisecond))
	}
	return Late, ""
}

// Done notes a completed step: a suspect worker is trusted again.
func (s *Supervisor) Done() {
	if s.state == Suspect {
		s.state = Ready
	}
}

// QuarantineError says that a worker is not restarted any more.
type QuarantineError struct {
	Crashes int
	Window  time.Duration
	Reason  string // of the last crash
}

// Error says what to do.
func (e *QuarantineError) Error() string {
	return fmt.Sprintf("worker quarantined after %d crashes within %s; find the cause, then restart deepinfer or change the backend's pin. Last cause: %s", e.Crashes, e.Window, e.Reason)
}
