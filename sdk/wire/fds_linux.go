package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// FileLink carries open files from the engine to a worker: a SOCK_SEQPACKET pair, one message of eight bytes (the ticket) and one descriptor each.
// Safe for concurrent use.
type FileLink struct {
	mu   sync.Mutex
	conn *net.UnixConn
	next uint64
	held map[uint64]*os.File // received before their turn
}

// maxHeld bounds the files received and not claimed.
const maxHeld = 1024

// NewFileLink makes the pair: the engine's end, and the file to hand to the worker.
func NewFileLink() (*FileLink, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	peer := os.NewFile(uintptr(fds[1]), "file link")
	l, err := OpenFileLink(os.NewFile(uintptr(fds[0]), "file link"))
	if err != nil {
		peer.Close()
		return nil, nil, err
	}
	return l, peer, nil
}

// OpenFileLink takes over one end.
func OpenFileLink(f *os.File) (*FileLink, error) {
	defer f.Close() // FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("file link: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("file link: descriptor is a %T, need a unix socket", c)
	}
	return &FileLink{conn: u, held: map[uint64]*os.File{}}, nil
}

// Send passes an open file and returns its ticket. The caller keeps f.
func (l *FileLink) Send(f *os.File) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], l.next)
	_ = l.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, _, err := l.conn.WriteMsgUnix(b[:], unix.UnixRights(int(f.Fd())), nil); err != nil {
		return 0, fmt.Errorf("send %s to the worker: %w", f.Name(), err)
	}
	return l.next, nil
}

// Receive returns the file sent under a ticket; the caller owns it. It waits at most d.
func (l *FileLink) Receive(ticket uint64, name string, d time.Duration) (*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.conn.SetReadDeadline(time.Now().Add(d))
	for {
		if f, ok := l.held[ticket]; ok {
			delete(l.held, ticket)
			return f, nil
		}
		if len(l.held) >= maxHeld {
			return nil, fmt.Errorf("file link: %d files received and not claimed", len(l.held))
		}
		var b [8]byte
		oob := make([]byte, unix.CmsgSpace(4*4))
		n, m, flags, _, err := l.conn.ReadMsgUnix(b[:], oob)
		if err != nil {
			return nil, fmt.Errorf("file link: waiting for %s (ticket %d): %w", name, ticket, err)
		}
		fds, err := parseRights(oob[:m])
		if err != nil || n != 8 || len(fds) != 1 || flags&unix.MSG_CTRUNC != 0 {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("file link: message of %d bytes with %d descriptors (flags %#x, %v), expected 8 bytes and one", n, len(fds), flags, err)
		}
		l.held[binary.LittleEndian.Uint64(b[:])] = os.NewFile(uintptr(fds[0]), name)
	}
}

func parseRights(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	for _, fd := range all {
		unix.CloseOnExec(fd)
	}
	return all, nil
}

// Close closes this end and every file that nobody claimed.
func (l *FileLink) Close() error {
	err := l.conn.Close() // first, so that a waiting Receive returns and lets go of the lock
	l.mu.Lock()
	defer l.mu.Unlock()
	for t, f := range l.held {
		err = errors.Join(err, f.Close())
		delete(l.held, t)
	}
	return err
}
