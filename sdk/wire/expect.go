package wire

import "time"

// expectation predicts how long a step takes: a moving average per program (one program is one bucket), and how late the kernel wakes a sleeper. One
// goroutine at a time.
type expectation struct {
	mean  []time.Duration // by program id
	late  time.Duration   // moving average of oversleeping
	known bool
}

const (
	maxPrograms   = 4096                   // ids beyond share the last average
	firstLate     = 60 * time.Microsecond  // wake allowance before anything was measured
	maxLate       = 500 * time.Microsecond // a busy host must not push the whole wait into spinning
	parkShare     = 95                     // per cent of the expected time spent parked
	averageWeight = 8
)

func (e *expectation) slot(program uint32) int { return int(min(program, maxPrograms-1)) }

func (e *expectation) get(program uint32) time.Duration {
	if i := e.slot(program); i < len(e.mean) {
		return e.mean[i]
	}
	return 0
}

func (e *expectation) learn(program uint32, d time.Duration) {
	i := e.slot(program)
	for len(e.mean) <= i {
		e.mean = append(e.mean, 0)
	}
	if e.mean[i] == 0 {
		e.mean[i] = d
	} else {
		e.mean[i] += (d - e.mean[i]) / averageWeight
	}
}

// wakeAt is when to stop sleeping for a step begun at start; zero when nothing is known of the program.
func (e *expectation) wakeAt(program uint32, start time.Time) time.Time {
	mean := e.get(program)
	if mean == 0 {
		return time.Time{}
	}
	late := firstLate
	if e.known {
		late = min(e.late, maxLate)
	}
	return start.Add(mean*parkShare/100 - late)
}

func (e *expectation) overslept(d time.Duration) {
	d = max(d, 0)
	if !e.known {
		e.late, e.known = d, true
		return
	}
	e.late += (d - e.late) / averageWeight
}

// luck stops spinning where it does not pay: on a busy host, or when the scheduler put both sides on one CPU, whole spins run out for nothing. After more
// misses than hits the side only parks for a while, then tries again.
type luck struct{ score int }

func (l *luck) spin() bool {
	if l.score < 0 {
		l.score++
		return false
	}
	return true
}

func (l *luck) learn(hit bool) {
	switch {
	case hit:
		l.score = min(l.score+1, 8)
	case l.score > 2:
		l.score -= 3
	default:
		l.score = -64
	}
}
