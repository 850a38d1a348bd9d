package serve

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// sealer hides reasoning that a client keeps for us: encrypted_content. The text is "v1." and base64url of key id, nonce and the sealed payload; the tenant is
// authenticated with it, so that nobody opens another's.
type sealer struct {
	id   [4]byte
	aead cipher.AEAD
	sign []byte // key of the signatures of thinking blocks
}

const sealVersion = "v1."

// newSealer makes a sealer from a secret, or for this process only when it is empty.
func newSealer(secret []byte) (*sealer, error) {
	if len(secret) == 0 {
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails: crypto/rand ends the process instead
	} else if len(secret) < 16 {
		return nil, fmt.Errorf("the secret for sealed reasoning has %d bytes: at least 16 are needed", len(secret))
	}
	derive := func(purpose string) [sha256.Size]byte {
		return sha256.Sum256(append([]byte("deepinfer "+purpose+"\x00"), secret...))
	}
	key, name, sign := derive("seal"), derive("key id"), derive("signature")
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	s := &sealer{sign: sign[:]}
	copy(s.id[:], name[:])
	s.aead, err = cipher.NewGCM(block)
	return s, err
}

type sealed struct {
	Reasoning string `json:"r"`
	Time      int64  `json:"t"`
}

func (s *sealer) seal(reasoning, tenant string) string {
	plain, err := json.Marshal(sealed{reasoning, time.Now().Unix()})
	if err != nil {
		panic(err) // a string and a number
	}
	b := append([]byte(nil), s.id[:]...)
	nonce := make([]byte, s.aead.NonceSize())
	_, _ = rand.Read(nonce)
	b = append(b, nonce...)
	return sealVersion + base64.RawURLEncoding.EncodeToString(s.aead.Seal(b, nonce, plain, []byte(tenant)))
}

// errSealed says that a text is none of ours, or was changed.
var errSealed = errors.New("it was not made by this server, or was changed")

// open gives the reasoning, "" when the key that sealed it is gone.
func (s *sealer) open(text, tenant string) (string, error) {
	raw, ok := strings.CutPrefix(text, sealVersion)
	if !ok {
		return "", errSealed
	}
	b, err := base64.RawURLEncoding.DecodeString(raw)
	if n := len(s.id) + s.aead.NonceSize(); err != nil || len(b) < n+s.aead.Overhead() {
		return "", errSealed
	}
	if string(b[:len(s.id)]) != string(s.id[:]) {
		return "", nil
	}
	b = b[len(s.id):]
	nonce, b := b[:s.aead.NonceSize()], b[s.aead.NonceSize():]
	plain, err := s.aead.Open(nil, nonce, b, []byte(tenant))
	if err != nil {
		return "", errSealed
	}
	var p sealed
	if err := json.Unmarshal(plain, &p); err != nil {
		return "", errSealed
	}
	return p.Reasoning, nil
}
