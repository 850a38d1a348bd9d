package engine

import (
	"fmt"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Bits of Batch.Flag and Batch.HistFlag (di_batch).
const (
	flagImage   = 1
	flagMissing = 2 // HistFlag: no such position
)

// layout writes the plan into the step buffer: the rows of each request with their positions, tables and preceding tokens, and how each wanted logit row
// is drawn. It reuses the buffers of the step before.
func (e *Engine) layout() *program.Step {
	l := &e.loop
	st, b := &l.step, &l.step.Rows
	l.seq++
	st.Seq = l.seq
	st.TopN = 0
	st.Logits, st.Sampling, st.Input = st.Logits[:0], st.Sampling[:0], st.Input[:0]
	st.Masks, st.MaskWords, st.Biases = st.Masks[:0], 0, st.Biases[:0]
	clear(l.masks)
	l.masks, l.shared = l.masks[:0], -1
	for _, s := range []*[]int32{&b.Token, &b.Pos, &b.Seq, &b.Flag, &b.ImageRow, &b.SeqFirst, &b.SeqRows, &b.SeqSlot, &b.SeqLow, &b.SeqWrite, &b.Table, &b.Hist, &b.HistFlag} {
		*s = (*s)[:0]
	}
	b.TableWidth = 0
	for _, p := range l.plan.Parts {
		b.TableWidth = max(b.TableWidth, (p.To+e.geo.GranuleTokens-1)/e.geo.GranuleTokens)
	}
	for i, p := range l.plan.Parts {
		e.layoutPart(int32(i), p)
	}
	st.Program = e.pick(len(b.Token), len(b.SeqSlot), len(st.Logits)).id
	if checking {
		c := e.pick(len(b.Token), len(b.SeqSlot), len(st.Logits))
		lim := l.sched.Limits()
		if err := st.Validate(c.prog, lim.Slots, lim.Granules, e.geo.Vocab); err != nil {
			panic(fmt.Sprintf("laid out a bad step: %v", err))
		}
	}
	return st
}

// pick returns the smallest program that holds the counts. The scheduler keeps within the largest.
func (e *Engine) pick(rows, seqs, logits int) *compiled {
	for i := range e.programs {
		if b := e.programs[i].bucket; rows <= b.Rows && seqs <= b.Seqs && logits <= b.Logits {
			return &e.programs[i]
		}
	}
	panic(fmt.Sprintf("step of %d rows, %d sequences, %d logits fits no program", rows, seqs, logits))
}

func (e *Engine) flag(id int32) int32 {
	if e.geo.ImageToken > 0 && id == e.geo.ImageToken {
		return flagImage
	}
	return 0
}

func (e *Engine) layoutPart(i int32, p sched.Part) {
	l := &e.loop
	st, b := &l.step, &l.step.Rows
	q := l.reqs[p.Handle]
	first := len(b.Token)
	b.SeqFirst = append(b.SeqFirst, int32(first))
	b.SeqRows = append(b.SeqRows, int32(p.To-p.From))
	b.SeqSlot = append(b.SeqSlot, l.sched.Slot(p.Handle))
	b.SeqLow = append(b.SeqLow, 0)
	b.SeqWrite = append(b.SeqWrite, 0)
	table := l.sched.Table(p.Handle)
	table = table[:min(len(table), b.TableWidth)]
	b.Table = append(b.Table, table...)
	for range b.TableWidth - len(table) {
		b.Table = append(b.Table, 0)
	}
	for k := e.geo.NHist; k >= 1; k-- {
		if at := p.From - k; at >= 0 {
			b.Hist = append(b.Hist, q.ids[at])
			b.HistFlag = append(b.HistFlag, e.flag(q.ids[at]))
		} else {
			b.Hist = append(b.Hist, 0)
			b.HistFlag = append(b.HistFlag, flagMissing)
		}
	}
	img := 0
	for pos := p.From; pos < p.To; pos++ {
		id := q.ids[pos]
		b.Token = append(b.Token, id)
		b.Pos = append(b.Pos, int32(pos))
		b.Seq = append(b.Seq, i)
		b.Flag = append(b.Flag, e.flag(id))
		row := int32(-1)
		for img < len(q.images) && pos >= q.images[img].Start+len(q.images[img].Rows)/e.hidden {
			img++
		}
		if img < len(q.images) && pos >= q.images[img].Start {
			at := (pos - q.images[img].Start) * e.hidden
			row = int32(len(st.Input) / e.hidden)
			st.Input = append(st.Input, q.images[img].Rows[at:at+e.hidden]...)
		}
		b.ImageRow = append(b.ImageRow, row)
	}
	if p.Logits() == 0 {
		return
	}
	st.TopN = max(st.TopN, q.topN)
	for pos := p.LogitsFrom; pos < p.To; pos++ {
		st.Logits = append(st.Logits, int32(first+pos-p.From))
		if q.forced {
			st.Sampling = append(st.Sampling, sample.ForcedRow(pos+1, q.ids[pos+1]))
		} else {
			e.draw(q, pos+1)
		}
	}
}
