package store

import (
	"container/list"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Defaults of Options.
const (
	DefaultMaxBytes = 256 << 20
	DefaultMaxAge   = 30 * 24 * time.Hour
	DefaultMaxChain = 1000
)

// Statuses of a response.
const (
	Queued     = "queued"
	InProgress = "in_progress"
	Completed  = "completed"
	Incomplete = "incomplete"
	Failed     = "failed"
	Cancelled  = "cancelled"
)

// ErrNotFound says that there is no such response: never made, deleted, expired, evicted, or another tenant's.
var ErrNotFound = errors.New("no such response")

// ErrClosed is the error of every call after Close.
var ErrClosed = errors.New("the store of responses is closed")

// ChainError says that a response cannot be continued because one before it is gone, or because there are too many.
type ChainError struct {
	ID      string // the response asked for
	Missing string // the one that is gone; "" = the chain is too long
	Limit   int
}

// Error names the responses.
func (e *ChainError) Error() string {
	if e.Missing == "" {
		return fmt.Sprintf("response %s continues more than %d others", e.ID, e.Limit)
	}
	return fmt.Sprintf("response %s continues %s, which is not stored any more", e.ID, e.Missing)
}

// Is makes a ChainError about a missing response an ErrNotFound.
func (e *ChainError) Is(target error) bool { return target == ErrNotFound && e.Missing != "" }

// SizeError says that one response is larger than the whole store may be.
type SizeError struct{ Size, Limit int64 }

// Error gives both sizes.
func (e *SizeError) Error() string {
	return fmt.Sprintf("the response takes %d bytes, the store holds %d", e.Size, e.Limit)
}

// Record is one stored response. The byte slices are JSON; a Record from the store belongs to the caller.
type Record struct {
	Tenant   string    // whose it is; others do not see it
	ID       string    // unique within the tenant
	Previous string    // the response it continues, "" = none
	Created  time.Time // zero = now
	Status   string    // one of the constants
	Cancel   bool      // somebody asked for its cancellation

	Response []byte // the response object
	Input    []byte // its own input items, an array
	Output   []byte // its output items, an array
}

// Ended says whether the response will not change any more.
func (r *Record) Ended() bool { return r.Status != Queued && r.Status != InProgress }

// Options configure a store. The zero value is a store in memory with the default bounds.
type Options struct {
	Dir      string        // directory of the log file, made if absent; "" = memory
	MaxBytes int64         // of all records, compressed; 0 = 256 MiB
	MaxAge   time.Duration // since creation; 0 = 30 days
	NoSync   bool          // Put does not wait for the disk: a crash of the machine (not of the process) may lose the last responses
	Clock    func() time.Time
	Logger   *slog.Logger // nil = silent
}

// meta is the part of a record that stays in memory.
type meta struct {
	Tenant   string `json:"tenant,omitempty"`
	ID       string `json:"id"`
	Previous string `json:"previous,omitempty"`
	Created  int64  `json:"created"` // milliseconds since 1970
	Status   string `json:"status,omitempty"`
	Cancel   bool   `json:"cancel,omitempty"`
}

type key struct{ tenant, id string }

type entry struct {
	meta
	body []byte // in memory: compressed
	at   int64  // on disk: offset of the record
	size int64  // of the record
	node *list.Element
}

// Stats counts what a store holds.
type Stats struct {
	Records int
	Bytes   int64 // of live records
	File    int64 // of the log file, garbage included
	Evicted uint64
	Expired uint64
}

// Store keeps responses.
type Store struct {
	opt  Options
	log  *slog.Logger
	enc  *zstd.Encoder
	dec  *zstd.Decoder
	sync sync.Mutex // held while the file is synced or replaced; taken before mu

	mu      sync.Mutex
	byID    map[key]*entry
	order   *list.List // *entry, oldest first
	bytes   int64
	evicted uint64
	expired uint64
	file    *logFile // nil in memory
	synced  int64    // bytes of the file that are on disk
	closed  bool
}

// Open makes a store, or opens the one in Options.Dir.
func Open(opt Options) (*Store, error) {
	if opt.MaxBytes < 0 || opt.MaxAge < 0 {
		return nil, fmt.Errorf("open store of responses: bounds of %d bytes and %s: must not be negative", opt.MaxBytes, opt.MaxAge)
	}
	if opt.MaxBytes == 0 {
		opt.MaxBytes = DefaultMaxBytes
	}
	if opt.MaxAge == 0 {
		opt.MaxAge = DefaultMaxAge
	}
	if opt.Clock == nil {
		opt.Clock = time.Now
	}
	s := &Store{opt: opt, log: opt.Logger, byID: map[key]*entry{}, order: list.New()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if s.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1)); err != nil {
		return nil, fmt.Errorf("open store of responses: %w", err)
	}
	if s.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRecord)); err != nil {
		return nil, fmt.Errorf("open store of responses: %w", err)
	}
	if opt.Dir == "" {
		return s, nil
	}
	if err := s.openLog(); err != nil {
		return nil, fmt.Errorf("open store of responses: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.trim(); err != nil {
		s.file.close()
		return nil, fmt.Errorf("open store of responses: %w", err)
	}
	return s, nil
}

// Close ends the store.
func (s *Store) Close() error {
	s.sync.Lock()
	defer s.sync.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.dec.Close()
	if s.file == nil {
		return nil
	}
	return s.file.close()
}

// body is what a record holds beside its meta.
type body struct {
	Response json.RawMessage `json:"response,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"`
	Output   json.RawMessage `json:"output,omitempty"`
}

// Put stores a record in the place of one with the same id, and returns when it is safe.
func (s *Store) Put(r *Record) error {
	if r.ID == "" {
		return errors.New("store a response: it has no id")
	}
	for _, f := range []struct {
		name string
		raw  []byte
	}{{"response", r.Response}, {"input", r.Input}, {"output", r.Output}} {
		if f.raw != nil && !json.Valid(f.raw) {
			return fmt.Errorf("store response %s: its %s is no JSON", r.ID, f.name)
		}
	}
	plain, err := json.Marshal(body{r.Response, r.Input, r.Output})
	if err != nil {
		return fmt.Errorf("store response %s: %w", r.ID, err)
	}
	packed := s.enc.EncodeAll(plain, nil)
	created := r.Created
	if created.IsZero() {
		created = s.opt.Clock()
	}
	e := &entry{meta: meta{Tenant: r.Tenant, ID: r.ID, Previous: r.Previous, Created: created.UnixMilli(), Status: r.Status, Cancel: r.Cancel}, body: packed}
	end, err := s.insert(e)
	if err != nil {
		return fmt.Errorf("store response %s: %w", r.ID, err)
	}
	if err := s.flush(end); err != nil {
		return fmt.Errorf("store response %s: %w", r.ID, err)
	}
	return nil
}

// insert adds an entry and gives the length of the file that holds it.
func (s *Store) insert(e *entry) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, ErrClosed
	}
	frame, err := encode(kindPut, &e.meta, e.body)
	if err != nil {
		return 0, err
	}
	e.size = int64(len(frame))
	if e.size > s.opt.MaxBytes {
		return 0, &SizeError{Size: e.size, Limit: s.opt.MaxBytes}
	}
	if s.file != nil {
		if e.at, err = s.file.append(frame); err != nil {
			return 0, err
		}
		e.body = nil
	}
	s.add(e)
	if err := s.trim(); err != nil {
		return 0, err
	}
	return s.length(), nil
}

func (s *Store) length() int64 {
	if s.file == nil {
		return 0
	}
	return s.file.size
}

// add makes e the entry of its id and the last to go.
func (s *Store) add(e *entry) {
	k := key{e.Tenant, e.ID}
	if old := s.byID[k]; old != nil {
		s.bytes -= old.size
		s.order.Remove(old.node)
	}
	e.node = s.order.PushBack(e)
	s.byID[k] = e
	s.bytes += e.size
}

func (s *Store) drop(e *entry) {
	delete(s.byID, key{e.Tenant, e.ID})
	s.order.Remove(e.node)
	s.bytes -= e.size
}

// trim drops what is too old and what does not fit, and compacts the file when most of it is garbage. s.mu is held.
func (s *Store) trim() error {
	oldest := s.opt.Clock().Add(-s.opt.MaxAge).UnixMilli()
	for n := s.order.Front(); n != nil; n = s.order.Front() {
		e := n.Value.(*entry)
		if e.Created >= oldest && s.bytes <= s.opt.MaxBytes {
			break
		}
		if e.Created < oldest {
			s.expired++
		} else {
			s.evicted++
		}
		if err := s.remove(e); err != nil {
			return err
		}
	}
	return nil
}

// remove drops an entry and says so in the file.
func (s *Store) remove(e *entry) error {
	if s.file != nil {
		frame, err := encode(kindDelete, &meta{Tenant: e.Tenant, ID: e.ID}, nil)
		if err != nil {
			return err
		}
		if _, err := s.file.append(frame); err != nil {
			return err
		}
	}
	s.drop(e)
	return nil
}

// flush waits until the first end bytes of the file are on disk; callers that wait together share one sync.
func (s *Store) flush(end int64) error {
	if s.opt.Dir == "" {
		return nil
	}
	s.sync.Lock()
	defer s.sync.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	if end <= s.synced || s.opt.NoSync {
		err := s.compactIfWorth()
		s.mu.Unlock()
		return err
	}
	f, size := s.file, s.file.size
	s.mu.Unlock()
	if err := f.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", f.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = max(s.synced, size)
	return s.compactIfWorth()
}

func (s *Store) find(tenant, id string) *entry {
	e := s.byID[key{tenant, id}]
	if e == nil || e.Created < s.opt.Clock().Add(-s.opt.MaxAge).UnixMilli() {
		return nil
	}
	return e
}

// read gives the record of an entry. s.mu is held.
func (s *Store) read(e *entry) (*Record, error) {
	packed := e.body
	if s.file != nil {
		m, b, err := s.file.record(e.at, e.size)
		if err != nil {
			return nil, err
		}
		if m.ID != e.ID || m.Tenant != e.Tenant {
			return nil, &CorruptError{File: s.file.path, Offset: e.at, Reason: fmt.Sprintf("holds response %s instead of %s", m.ID, e.ID)}
		}
		packed = b
	}
	plain, err := s.dec.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("decompress response %s: %w", e.ID, err)
	}
	var b body
	if err := json.Unmarshal(plain, &b); err != nil {
		return nil, fmt.Errorf("decode response %s: %w", e.ID, err)
	}
	return &Record{Tenant: e.Tenant, ID: e.ID, Previous: e.Previous, Created: time.UnixMilli(e.Created), Status: e.Status, Cancel: e.Cancel,
		Response: b.Response, Input: b.Input, Output: b.Output}, nil
}

// Get gives a response, or ErrNotFound.
func (s *Store) Get(tenant, id string) (*Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	e := s.find(tenant, id)
	if e == nil {
		return nil, ErrNotFound
	}
	return s.read(e)
}

// Delete removes a response, or gives ErrNotFound.
func (s *Store) Delete(tenant, id string) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	e := s.find(tenant, id)
	if e == nil {
		s.mu.Unlock()
		return ErrNotFound
	}
	err := s.remove(e)
	end := s.length()
	s.mu.Unlock()
	if err == nil {
		err = s.flush(end)
	}
	if err != nil {
		return fmt.Errorf("delete response %s: %w", id, err)
	}
	return nil
}

// Chain gives a response and all it continues, oldest first, at most limit of them (0 = 1000). Errors: ErrNotFound, *ChainError.
func (s *Store) Chain(tenant, id string, limit int) ([]*Record, error) {
	if limit == 0 {
		limit = DefaultMaxChain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	var found []*entry
	for at := id; at != ""; {
		e := s.find(tenant, at)
		switch {
		case e == nil && at == id:
			return nil, ErrNotFound
		case e == nil:
			return nil, &ChainError{ID: id, Missing: at}
		case len(found) == limit:
			return nil, &ChainError{ID: id, Limit: limit}
		}
		found = append(found, e)
		at = e.Previous
	}
	out := make([]*Record, len(found))
	for i, e := range found {
		r, err := s.read(e)
		if err != nil {
			return nil, err
		}
		out[len(out)-1-i] = r
	}
	return out, nil
}

// SetCancel marks a response that has not ended as one to cancel and gives it. A response that has ended is given as it is.
func (s *Store) SetCancel(tenant, id string) (*Record, error) {
	r, err := s.Get(tenant, id)
	if err != nil || r.Ended() || r.Cancel {
		return r, err
	}
	r.Cancel = true
	return r, s.Put(r)
}

// Unfinished gives the responses whose status says that they still run. After a restart nobody works on them.
func (s *Store) Unfinished() ([]*Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*Record
	for n := s.order.Front(); n != nil; n = n.Next() {
		e := n.Value.(*entry)
		if e.Status != Queued && e.Status != InProgress {
			continue
		}
		r, err := s.read(e)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Stats counts what the store holds.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Records: len(s.byID), Bytes: s.bytes, File: s.length(), Evicted: s.evicted, Expired: s.expired}
}
