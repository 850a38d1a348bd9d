package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Layout of the ring region. The numbers are the wire contract of LayoutVersion; docs/wire.md draws them.
const (
	Magic         = 0x47525344 // "DSRG"
	LayoutVersion = 1
	Slots         = 8   // of each ring; a power of two
	SlotBytes     = 256 // of each slot
	HeaderBytes   = 4096
	RegionBytes   = HeaderBytes + 2*Slots*SlotBytes

	lineBytes      = 128 // one index per line, so that no two writers share a cache line (or its prefetched neighbour)
	offMagic       = 0
	offLayout      = 4
	offEpoch       = 8
	offSlots       = 12
	offSlotBytes   = 16
	offHeader      = 20
	offTotal       = 24
	offSubHead     = 1024 + 0*lineBytes // host: steps submitted
	offSubTail     = 1024 + 1*lineBytes // worker: steps taken
	offComHead     = 1024 + 2*lineBytes // worker: steps completed
	offComTail     = 1024 + 3*lineBytes // host: results taken
	offWorkerPark  = 1024 + 4*lineBytes // worker: 1 while it may sleep on SubHead
	offHostPark    = 1024 + 5*lineBytes // host: 1 while it may sleep on ComHead
	offStepBeat    = 1024 + 6*lineBytes // step thread: grows at every step boundary and at least every 100 ms while idle
	offProcessBeat = 1024 + 7*lineBytes // worker's beat goroutine: grows every 100 ms while the process runs at all
	offSubmission  = HeaderBytes
	offCompletion  = HeaderBytes + Slots*SlotBytes
)

// ProtocolError says that the other side broke the ring's rules: a corrupt slot, an index out of range, a payload outside its partition. The link is
// unusable afterwards; the worker is restarted.
type ProtocolError struct {
	Side string // who found it: "host" or "worker"
	What string
}

// Error formats the finding.
func (e *ProtocolError) Error() string { return "step ring, " + e.Side + " side: " + e.What }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Arrays of a submission payload, in their order. Each starts on a multiple of 8 bytes.
const (
	arrToken = iota
	arrPos
	arrSeq
	arrFlag
	arrImageRow
	arrSeqFirst
	arrSeqRows
	arrSeqSlot
	arrSeqLow
	arrSeqWrite
	arrTable
	arrHist
	arrHistFlag
	batchArrays
)

const (
	arrKept      = batchArrays
	arrKeptIndex = 2*batchArrays + iota - 1
	arrLogits
	arrSampling
	arrMasks
	arrBiases
	arrInput
	stepArrays
)

// Arrays of a completion payload.
const (
	arrIDs = iota
	arrLogProb
	arrTopIDs
	arrTopLogProb
	arrRows
	arrOp
	arrMsg
	resultArrays
)

// Submission is one entry of the submission ring.
type Submission struct {
	Ticket   uint64 // ring position, counts from 0
	Step     uint64 // program.Step.Seq
	Epoch    uint32
	Flags    uint32
	Deadline uint64 // CLOCK_MONOTONIC nanoseconds, 0 = none; informative, the host enforces it
	Program  uint32
	Arena    uint32

	PayloadOff, PayloadLen uint64
	ReplyOff, ReplyCap     uint64

	TopN, GridH, GridW, Cells  uint32
	TableWidth, KeptTableWidth uint32
	MaskWords                  uint32
	Len                        [stepArrays]uint32 // elements of each array
}

const flagKept = 1 // Step.Kept is present

// Completion is one entry of the completion ring.
type Completion struct {
	Ticket uint64
	Step   uint64
	Epoch  uint32
	Code   uint32 // 0 = ok, else the gRPC code of the failure
	Scope  uint32
	Native int32

	Dequeued, Launched, Done uint64 // CLOCK_MONOTONIC nanoseconds

	Arena              uint32
	ReplyOff, ReplyLen uint64
	Len                [resultArrays]uint32
}

// slotBuf is a private copy of a slot.
type slotBuf [SlotBytes]byte

func (s *slotBuf) seal() {
	binary.LittleEndian.PutUint32(s[SlotBytes-4:], crc32.Checksum(s[:SlotBytes-4], castagnoli))
}

func (s *slotBuf) sound() bool {
	return binary.LittleEndian.Uint32(s[SlotBytes-4:]) == crc32.Checksum(s[:SlotBytes-4], castagnoli)
}

func (m *Submission) encode(s *slotBuf) {
	le := binary.LittleEndian
	clear(s[:])
	le.PutUint64(s[0:], m.Ticket)
	le.PutUint64(s[8:], m.Step)
	le.PutUint32(s[16:], m.Epoch)
	le.PutUint32(s[20:], m.Flags)
	le.PutUint64(s[24:], m.Deadline)
	le.PutUint32(s[32:], m.Program)
	le.PutUint32(s[36:], m.Arena)
	le.PutUint64(s[40:], m.PayloadOff)
	le.PutUint64(s[48:], m.PayloadLen)
	le.PutUint64(s[56:], m.ReplyOff)
	le.PutUint64(s[64:], m.ReplyCap)
	le.PutUint32(s[72:], m.TopN)
	le.PutUint32(s[76:], m.GridH)
	le.PutUint32(s[80:], m.GridW)
	le.PutUint32(s[84:], m.Cells)
	le.PutUint32(s[88:], m.TableWidth)
	le.PutUint32(s[92:], m.KeptTableWidth)
	le.PutUint32(s[96:], m.MaskWords)
	for i, n := range m.Len {
		le.PutUint32(s[100+4*i:], n)
	}
	s.seal()
}

func (m *Submission) decode(s *slotBuf) error {
	if !s.sound() {
		return fmt.Errorf("submission slot fails its checksum")
	}
	le := binary.LittleEndian
	m.Ticket = le.Uint64(s[0:])
	m.Step = le.Uint64(s[8:])
	m.Epoch = le.Uint32(s[16:])
	m.Flags = le.Uint32(s[20:])
	m.Deadline = le.Uint64(s[24:])
	m.Program = le.Uint32(s[32:])
	m.Arena = le.Uint32(s[36:])
	m.PayloadOff = le.Uint64(s[40:])
	m.PayloadLen = le.Uint64(s[48:])
	m.ReplyOff = le.Uint64(s[56:])
	m.ReplyCap = le.Uint64(s[64:])
	m.TopN = le.Uint32(s[72:])
	m.GridH = le.Uint32(s[76:])
	m.GridW = le.Uint32(s[80:])
	m.Cells = le.Uint32(s[84:])
	m.TableWidth = le.Uint32(s[88:])
	m.KeptTableWidth = le.Uint32(s[92:])
	m.MaskWords = le.Uint32(s[96:])
	for i := range m.Len {
		m.Len[i] = le.Uint32(s[100+4*i:])
	}
	return nil
}

func (m *Completion) encode(s *slotBuf) {
	le := binary.LittleEndian
	clear(s[:])
	le.PutUint64(s[0:], m.Ticket)
	le.PutUint64(s[8:], m.Step)
	le.PutUint32(s[16:], m.Epoch)
	le.PutUint32(s[20:], m.Code)
	le.PutUint32(s[24:], m.Scope)
	le.PutUint32(s[28:], uint32(m.Native))
	le.PutUint64(s[32:], m.Dequeued)
	le.PutUint64(s[40:], m.Launched)
	le.PutUint64(s[48:], m.Done)
	le.PutUint32(s[56:], m.Arena)
	le.PutUint64(s[64:], m.ReplyOff)
	le.PutUint64(s[72:], m.ReplyLen)
	for i, n := range m.Len {
		le.PutUint32(s[80+4*i:], n)
	}
	s.seal()
}

func (m *Completion) decode(s *slotBuf) error {
	if !s.sound() {
		return fmt.Errorf("completion slot fails its checksum")
	}
	le := binary.LittleEndian
	m.Ticket = le.Uint64(s[0:])
	m.Step = le.Uint64(s[8:])
	m.Epoch = le.Uint32(s[16:])
	m.Code = le.Uint32(s[20:])
	m.Scope = le.Uint32(s[24:])
	m.Native = int32(le.Uint32(s[28:]))
	m.Dequeued = le.Uint64(s[32:])
	m.Launched = le.Uint64(s[40:])
	m.Done = le.Uint64(s[48:])
	m.Arena = le.Uint32(s[56:])
	m.ReplyOff = le.Uint64(s[64:])
	m.ReplyLen = le.Uint64(s[72:])
	for i := range m.Len {
		m.Len[i] = le.Uint32(s[80+4*i:])
	}
	return nil
}
