package parity

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/core/plan"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Session holds one model on one device, with a pool of slots and granules handed out in order.
type Session struct {
	Cfg      *config.Config
	Geometry *model.Geometry
	Weights  *model.Weights
	Runner   *backend.Runner

	programs []bound // ascending buckets
	vision   *backend.Executable
	slots    int
	granules int
	nextSlot int
	nextGran int
	step     uint64
}

type bound struct {
	rows int
	exe  *backend.Executable
	prog *program.Program
}

// Open loads a checkpoint directory onto a device.
func Open(dev backend.Device, dir string, opt model.Options, buckets ...int) (*Session, error) {
	return OpenFS(dev, os.DirFS(dir), dir, opt, buckets...)
}

// OpenFS is Open over a file system; name appears in errors.
func OpenFS(dev backend.Device, files fs.FS, name string, opt model.Options, buckets ...int) (*Session, error) {
	m, err := model.LoadFS(files, name)
	if err != nil {
		return nil, err
	}
	g, err := model.NewGraph(m.Config, opt)
	if err != nil {
		return nil, err
	}
	s := &Session{Cfg: m.Config, Geometry: g.Geometry, Weights: m.Weights, slots: 96, granules: 320}
	s.Runner, err = backend.NewRunner(dev, backend.RunnerOptions{
		Weights: m.Weights, SlotBytes: g.Geometry.SlotBytes, Slots: s.slots, Granule: g.Geometry.GranuleStride, Granules: s.granules,
	})
	if err != nil {
		return nil, err
	}
	if len(buckets) == 0 {
		buckets = []int{1, 16, 512}
	}
	for _, rows := range buckets {
		p, err := plan.Lower(g, program.Bucket{Rows: rows, Seqs: min(rows, 96), Logits: rows})
		if err != nil {
			return nil, err
		}
		exe, err := s.Runner.Compile(p)
		if err != nil {
			return nil, err
		}
		s.programs = append(s.programs, bound{rows, exe, p})
	}
	if m.Config.Vision != nil {
		vg, err := model.NewVisionGraph(m.Config, opt)
		if err != nil {
			return nil, err
		}
		p, err := plan.Lower(vg, program.Bucket{Rows: 256, Seqs: 1, Logits: 64})
		if err != nil {
			return nil, err
		}
		if s.vision, err = s.Runner.Compile(p); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Seq is one sequence with its place in the pools.
type Seq struct {
	IDs   []int32
	slot  int32
	table []int32
	pos   int // rows already run

	image     []uint16 // embedding rows of the image span, BF16 [n, H]
	imageFrom int      // position of the first of them
}

// NewSeq takes a slot and granules for up to limit tokens.
func (s *Session) NewSeq(ids []int32, limit int) *Seq {
	q := &Seq{IDs: append([]int32(nil), ids...), slot: int32(s.nextSlot % s.slots)}
	s.nextSlot++
	for range (limit + model.GranuleTokens - 1) / model.GranuleTokens {
		q.table = append(q.table, int32(s.nextGran%s.granules))
		s.nextGran++
	}
	return q
}

// Part is what one sequence contributes to a step: its next rows, and the positions whose logits are wanted.
type Part struct {
	Seq    *Seq
	Rows   int
	Logits []int   // positions within these rows; nil = none
	Forced []int32 // ids to score at those positions; nil = draw greedily
}

// Run executes one step. Results come in the order of the parts' logits. observe may be nil.
func (s *Session) Run(parts []Part, observe func(op int, name string, t abi.Tensor)) (*program.Result, error) {
	st := &program.Step{Seq: s.step, TopN: 2}
	s.step++
	b := &st.Rows
	n := s.Geometry.NHist
	width := 0
	for _, p := range parts {
		width = max(width, len(p.Seq.table))
	}
	b.TableWidth = width
	for i, p := range parts {
		q := p.Seq
		b.SeqFirst = append(b.SeqFirst, int32(len(b.Token)))
		b.SeqRows = append(b.SeqRows, int32(p.Rows))
		b.SeqSlot = append(b.SeqSlot, q.slot)
		b.SeqLow = append(b.SeqLow, 0)
		b.SeqWrite = append(b.SeqWrite, 0)
		row := append([]int32(nil), q.table...)
		for len(row) < width {
			row = append(row, 0)
		}
		b.Table = append(b.Table, row...)
		for k := n; k >= 1; k-- {
			if at := q.pos - k; at >= 0 {
				b.Hist = append(b.Hist, q.IDs[at])
				b.HistFlag = append(b.HistFlag, s.flag(q.IDs[at]))
			} else {
				b.Hist, b.HistFlag = append(b.Hist, 0), append(b.HistFlag, 2)
			}
		}
		for k := range p.Rows {
			pos := q.pos + k
			id := q.IDs[pos]
			b.Token, b.Pos, b.Seq, b.Flag = append(b.Token, id), append(b.Pos, int32(pos)), append(b.Seq, int32(i)), append(b.Flag, s.flag(id))
			img := int32(-1)
			if at := pos - q.imageFrom; q.image != nil && at >= 0 && at < len(q.image)/s.Cfg.HiddenSize {
				img = int32(len(st.Input) / s.Cfg.HiddenSize)
				st.Input = append(st.Input, q.image[at*s.Cfg.HiddenSize:(at+1)*s.Cfg.HiddenSize]...)
			}
			b.ImageRow = append(b.ImageRow, img)
		}
		for k, pos := range p.Logits {
			st.Logits = append(st.Logits, b.SeqFirst[i]+int32(pos-q.pos))
			row := abi.Sampling{Pos: int32(pos + 1), Forced: -1}
			if p.Forced != nil {
				row.Forced = p.Forced[k]
			}
			st.Sampling = append(st.Sampling, row)
		}
		q.pos += p.Rows
	}
	for i := range s.programs {
		if c := &s.programs[i]; c.rows >= len(b.Token) {
			if err := st.Validate(c.prog, s.slots, s.granules, s.Cfg.VocabSize); err != nil {
				return nil, err
			}
			c.exe.Observe = observe
			res := new(program.Result)
			err := c.exe.Run(st, res)
			c.exe.Observe = nil
			return res, err
		}
	}
	return nil, fmt.Errorf("%d rows: larger than every bucket", len(b.Token))
}

func (s *Session) flag(id int32) int32 {
	if int(id) == s.Cfg.ImageTokenID {
		return 1
	}
	return 0
}

// Greedy runs a prompt in chunks of the given sizes (the last size repeats; 0 = all at once) and draws n tokens. It returns the tokens and the distance of
// the two best log-probabilities at each.
func (s *Session) Greedy(ids []int32, n int, chunks ...int) ([]int32, []float64, error) {
	q := s.NewSeq(ids, len(ids)+n)
	var out []int32
	var margin []float64
	for i := 0; len(out) < n; i++ {
		rows := len(q.IDs) - q.pos
		if len(chunks) > 0 {
			if c := chunks[min(i, len(chunks)-1)]; c > 0 {
				rows = min(rows, c)
			}
		}
		p := Part{Seq: q, Rows: rows}
		if q.pos+rows == len(q.IDs) {
			p.Logits = []int{len(q.IDs) - 1}
		}
		res, err := s.Run([]Part{p}, nil)
		if err != nil {
			return out, margin, err
		}
		if p.Logits != nil {
			out = append(out, res.IDs[0])
			margin = append(margin, float64(res.TopLogProb[0]-res.TopLogProb[1]))
			q.IDs = append(q.IDs, res.IDs[0])
		}
	}
	return out, margin, nil
}

// EncodeImage runs the vision program over patches and returns the embedding rows of the cells, BF16 [cells, H].
func (s *Session) EncodeImage(patches []uint16, gridH, gridW int) ([]uint16, error) {
	r := s.Cfg.Vision.DownsampleRatio
	st := &program.Step{Seq: s.step, Input: patches, GridH: gridH, GridW: gridW, Cells: ((gridH + r - 1) / r) * ((gridW + r - 1) / r)}
	s.step++
	res := new(program.Result)
	err := s.vision.Run(st, res)
	return res.Rows, err
}
