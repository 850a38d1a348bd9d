package model

import (
	"fmt"

	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// SpanRows builds the embedding rows of one image span from the aligner's cells (spec model 7.2): START, then per row of cells its cells and NEWLINE, then
// END. cells is BF16 [nh*nw, hidden] in reading order; the result is BF16 [nh*(nw+1)+2, hidden].
func (m *Model) SpanRows(cells []uint16, nh, nw int) ([]uint16, error) {
	d := m.Config.HiddenSize
	if len(cells) != nh*nw*d {
		return nil, fmt.Errorf("image span: %d values for %d x %d cells of %d", len(cells), nh, nw, d)
	}
	delimiter := func(name string) ([]uint16, error) {
		t, ok := m.Weights.Tensor(name)
		if !ok || t.DType != "BF16" || t.Size != int64(2*d) {
			return nil, fmt.Errorf("image span: tensor %s is missing or not BF16 [%d]", name, d)
		}
		raw := backend.Bytes(m.Weights, t)
		row := make([]uint16, d)
		for i := range row {
			row[i] = uint16(raw[2*i]) | uint16(raw[2*i+1])<<8
		}
		return row, nil
	}
	start, err := delimiter("image_start")
	if err != nil {
		return nil, err
	}
	newline, err := delimiter("image_newline")
	if err != nil {
		return nil, err
	}
	end, err := delimiter("image_end")
	if err != nil {
		return nil, err
	}
	rows := append(make([]uint16, 0, (nh*(nw+1)+2)*d), start...)
	for y := range nh {
		rows = append(append(rows, cells[y*nw*d:(y+1)*nw*d]...), newline...)
	}
	return append(rows, end...), nil
}
