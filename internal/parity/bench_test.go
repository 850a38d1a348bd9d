package parity

import (
	"testing"
)

// BenchmarkDecode is one sequence of the demo model, one token a step.
func BenchmarkDecode(b *testing.B) {
	for _, d := range append([]device{exact}, serving()...) {
		b.Run(d.name, func(b *testing.B) {
			s := open(b, d, "demo", "reference", 1, 64)
			p := demoPrompts(b)[0]
			q := s.NewSeq(p.IDs, 4096)
			if _, err := s.Run([]Part{{Seq: q, Rows: len(q.IDs)}}, nil); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				q.IDs = append(q.IDs, p.Greedy[q.pos%len(p.Greedy)])
				if q.pos >= 4000 {
					q.pos, q.IDs = len(p.IDs), q.IDs[:len(p.IDs)+1]
				}
				if _, err := s.Run([]Part{{Seq: q, Rows: 1, Logits: []int{q.pos}}}, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkPrefill is a prompt of 512 tokens in one step.
func BenchmarkPrefill(b *testing.B) {
	for _, d := range append([]device{exact}, serving()...) {
		b.Run(d.name, func(b *testing.B) {
			s := open(b, d, "demo", "reference", 512)
			var ids []int32
			for _, p := range demoPrompts(b) {
				ids = append(append(ids, p.IDs...), p.Greedy...)
			}
			for b.Loop() {
				q := s.NewSeq(ids[:512], 512)
				if _, err := s.Run([]Part{{Seq: q, Rows: 512, Logits: []int{511}}}, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
