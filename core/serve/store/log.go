package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// The file is a header of 16 bytes and records:
//
//	magic uint32 | length uint32 | crc32c uint32 | kind byte | meta length uvarint | meta JSON | body (zstd of JSON)
//
// little endian; length counts what follows the checksum, and the checksum covers that and the length. Records are only appended. The magic lets a reader tell a
// torn tail, after which nothing follows, from damage in the middle.
const (
	fileName  = "responses.log"
	header    = "deepinfer-resp\x00\x01"
	magic     = 0x70736572
	frameHead = 12
	maxRecord = 1 << 30

	kindPut    = 1
	kindDelete = 2

	compactAt = 1 << 20 // garbage of less is not worth a new file
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CorruptError is damage that no crash explains.
type CorruptError struct {
	File   string
	Offset int64
	Reason string
}

// Error names file, place and way out.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s: the record at offset %d is damaged: %s; restore the file from a backup, or move it away to start with no responses", e.File, e.Offset, e.Reason)
}

func checksum(length []byte, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(length, castagnoli), castagnoli, payload)
}

// encode makes a record.
func encode(kind byte, m *meta, body []byte) ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(raw)+len(body)+frameHead+16 > maxRecord {
		return nil, &SizeError{Size: int64(len(raw) + len(body)), Limit: maxRecord}
	}
	b := make([]byte, frameHead, frameHead+len(raw)+len(body)+16)
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(raw)))
	b = append(append(b, raw...), body...)
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-frameHead))
	binary.LittleEndian.PutUint32(b[8:], checksum(b[4:8], b[frameHead:]))
	return b, nil
}

// errTorn marks a record of which not all is there or right.
var errTorn = errors.New("not whole")

// decode reads the record at the start of b; size is its length.
func decode(b []byte) (kind byte, m meta, body []byte, size int64, err error) {
	if len(b) < frameHead {
		return 0, m, nil, 0, fmt.Errorf("%w: %d bytes of a head of %d", errTorn, len(b), frameHead)
	}
	if got := binary.LittleEndian.Uint32(b); got != magic {
		return 0, m, nil, 0, fmt.Errorf("%w: it starts with %08x", errTorn, got)
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	if n > int64(len(b)-frameHead) {
		return 0, m, nil, 0, fmt.Errorf("%w: %d bytes of %d", errTorn, len(b)-frameHead, n)
	}
	payload := b[frameHead : frameHead+n]
	if checksum(b[4:8], payload) != binary.LittleEndian.Uint32(b[8:]) {
		return 0, m, nil, 0, fmt.Errorf("%w: its checksum is wrong", errTorn)
	}
	size = frameHead + n
	if n < 2 {
		return 0, m, nil, size, fmt.Errorf("it has %d bytes", n)
	}
	kind = payload[0]
	length, k := binary.Uvarint(payload[1:])
	if k <= 0 || length > uint64(len(payload)-1-k) {
		return 0, m, nil, size, errors.New("its parts do not fit")
	}
	raw := payload[1+k:]
	if err := json.Unmarshal(raw[:length], &m); err != nil {
		return 0, m, nil, size, fmt.Errorf("its description cannot be read: %v", err)
	}
	if m.ID == "" || kind != kindPut && kind != kindDelete {
		return 0, m, nil, size, fmt.Errorf("unknown kind %d, id %q", kind, m.ID)
	}
	return kind, m, raw[length:], size, nil
}

// logFile is the open file.
type logFile struct {
	path string
	dir  string
	file *os.File
	size int64
	bad  error // a failed append whose traces could not be removed
}

// append writes a record whole or not at all and gives its offset.
func (l *logFile) append(frame []byte) (int64, error) {
	if l.bad != nil {
		return 0, l.bad
	}
	at := l.size
	if _, err := l.file.WriteAt(frame, at); err != nil {
		err = fmt.Errorf("write %s: %w", l.path, err)
		if terr := l.file.Truncate(at); terr != nil {
			l.bad = fmt.Errorf("%w; then truncate: %w", err, terr)
		}
		return 0, err
	}
	l.size += int64(len(frame))
	return at, nil
}

// record reads one record.
func (l *logFile) record(at, size int64) (meta, []byte, error) {
	b := make([]byte, size)
	if _, err := l.file.ReadAt(b, at); err != nil {
		return meta{}, nil, fmt.Errorf("read %s at offset %d: %w", l.path, at, err)
	}
	kind, m, body, n, err := decode(b)
	if err == nil && (kind != kindPut || n != size) {
		err = fmt.Errorf("it is not the one that was written (kind %d, %d bytes of %d)", kind, n, size)
	}
	if err != nil {
		return m, nil, &CorruptError{File: l.path, Offset: at, Reason: err.Error()}
	}
	return m, body, nil
}

func (l *logFile) close() error { return l.file.Close() }

// openLog opens or makes the file and reads what it holds.
func (s *Store) openLog() (err error) {
	dir := s.opt.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, fileName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := lock(f); err != nil {
		return fmt.Errorf("%s: another process has it open: %w", path, err)
	}
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, os.ErrNotExist) { // of a compaction that did not end
		return err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	l := &logFile{path: path, dir: dir, file: f}
	if len(raw) < len(header) && bytes.HasPrefix([]byte(header), raw) { // new, or a crash while it was made
		if _, err := f.WriteAt([]byte(header), 0); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if err := errors.Join(f.Sync(), syncDir(dir)); err != nil {
			return err
		}
		l.size = int64(len(header))
		s.file, s.synced = l, l.size
		return nil
	}
	if !bytes.HasPrefix(raw, []byte(header)) {
		return fmt.Errorf("%s is no file of responses that this version reads: it starts with %q", path, raw[:min(len(raw), len(header))])
	}
	at := int64(len(header))
	for at < int64(len(raw)) {
		kind, m, _, size, err := decode(raw[at:])
		if err != nil {
			if !errors.Is(err, errTorn) || follows(raw[at+1:]) {
				return &CorruptError{File: path, Offset: at, Reason: err.Error()}
			}
			s.log.Warn("the last response was written only in part and is dropped", "file", path, "offset", at, "bytes", int64(len(raw))-at, "reason", err.Error())
			if err := f.Truncate(at); err != nil {
				return fmt.Errorf("truncate %s: %w", path, err)
			}
			break
		}
		if kind == kindPut {
			s.add(&entry{meta: m, at: at, size: size})
		} else if e := s.byID[key{m.Tenant, m.ID}]; e != nil {
			s.drop(e)
		}
		at += size
	}
	l.size = at
	s.file, s.synced = l, at
	return nil
}

// follows says whether a whole record stands anywhere in b.
func follows(b []byte) bool {
	var mark [4]byte
	binary.LittleEndian.PutUint32(mark[:], magic)
	for {
		i := bytes.Index(b, mark[:])
		if i < 0 {
			return false
		}
		if _, _, _, _, err := decode(b[i:]); !errors.Is(err, errTorn) {
			return true
		}
		b = b[i+1:]
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// compactIfWorth rewrites the file without its garbage when that is most of it. s.sync and s.mu are held.
func (s *Store) compactIfWorth() error {
	garbage := s.file.size - int64(len(header)) - s.bytes
	if garbage < compactAt || garbage < s.bytes {
		return nil
	}
	return s.compact()
}

func (s *Store) compact() (err error) {
	path := s.file.path
	f, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(path + ".new")
		}
	}()
	if err := lock(f); err != nil {
		return fmt.Errorf("%s.new: %w", path, err)
	}
	l := &logFile{path: path, dir: s.file.dir, file: f, size: int64(len(header))}
	if _, err := f.WriteAt([]byte(header), 0); err != nil {
		return fmt.Errorf("write %s.new: %w", path, err)
	}
	places := make([]int64, 0, len(s.byID))
	for n := s.order.Front(); n != nil; n = n.Next() {
		e := n.Value.(*entry)
		b := make([]byte, e.size)
		if _, err := s.file.file.ReadAt(b, e.at); err != nil {
			return fmt.Errorf("read %s at offset %d: %w", path, e.at, err)
		}
		if _, _, _, _, err := decode(b); err != nil {
			return &CorruptError{File: path, Offset: e.at, Reason: err.Error()}
		}
		at, err := l.append(b)
		if err != nil {
			return err
		}
		places = append(places, at)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s.new: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	// From here on the new file is the store, whatever else fails.
	i := 0
	for n := s.order.Front(); n != nil; n = n.Next() {
		n.Value.(*entry).at = places[i]
		i++
	}
	old := s.file
	s.log.Info("the file of responses was compacted", "file", path, "before", old.size, "after", l.size)
	s.file, s.synced = l, l.size
	if err := errors.Join(syncDir(l.dir), old.close()); err != nil {
		s.log.Warn("after the compaction", "file", path, "error", err)
	}
	return nil
}
