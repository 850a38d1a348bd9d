package conf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Source says which layer set a value.
type Source int

// The layers, later ones win.
const (
	FromDefault Source = iota
	FromFile
	FromEnv
	FromFlag
)

// Origin is the place where a value was set.
type Origin struct {
	Source Source
	Name   string // file, variable or flag; "" for defaults
	Line   int    // of a file, from 1
	Column int    // of a file, in characters from 1
}

// String prints file:line:column, the variable, the flag, or "default".
func (o Origin) String() string {
	switch o.Source {
	case FromFile:
		return fmt.Sprintf("%s:%d:%d", o.Name, o.Line, o.Column)
	case FromEnv:
		return "environment " + o.Name
	case FromFlag:
		return "flag " + o.Name
	}
	return "default"
}

// Problem is one thing wrong with the configuration.
type Problem struct {
	Origin Origin
	Text   string // what was found, with the value, and what is accepted
}

// Error puts the place first, so that editors can jump to it.
func (p *Problem) Error() string {
	if p.Origin.Source == FromDefault {
		return p.Text
	}
	return p.Origin.String() + ": " + p.Text
}

// Problems lists the problems that err holds, in the order in which a reader meets them. Other errors become a Problem without a place.
func Problems(err error) []*Problem {
	if err == nil {
		return nil
	}
	var p *Problem
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []*Problem
		for _, e := range joined.Unwrap() {
			out = append(out, Problems(e)...)
		}
		return out
	}
	if errors.As(err, &p) {
		return []*Problem{p}
	}
	return []*Problem{{Text: err.Error()}}
}

// list gathers problems.
type list []*Problem

func (l *list) add(o Origin, format string, args ...any) {
	*l = append(*l, &Problem{Origin: o, Text: fmt.Sprintf(format, args...)})
}

// join returns nil or all problems, those of a file by line.
func (l list) join() error {
	slices.SortStableFunc(l, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Origin.Source, b.Origin.Source), cmp.Compare(a.Origin.Line, b.Origin.Line), cmp.Compare(a.Origin.Column, b.Origin.Column))
	})
	errs := make([]error, len(l))
	for i, p := range l {
		errs[i] = p
	}
	return errors.Join(errs...)
}
