package dl

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

const entryPrefix = "di_backend_v"

var entryName = fmt.Sprintf("%s%d", entryPrefix, abi.ABIMajor)

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "riscv64": elf.EM_RISCV, "loong64": elf.EM_LOONGARCH, "ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390}

// inspect says why a file cannot be a backend of this process, without running any of it.
func inspect(r io.ReaderAt) error {
	f, err := elf.NewFile(r)
	if err != nil {
		var format *elf.FormatError
		if errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("it is not an ELF shared object: %w", err)
		}
		return err
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return fmt.Errorf("it is %s %s, a 64-bit little-endian object is needed", f.Class, f.Data)
	}
	if want := machines[runtime.GOARCH]; f.Machine != want {
		return fmt.Errorf("it is built for %s, this process runs on %s (%s)", f.Machine, want, runtime.GOARCH)
	}
	if f.Type != elf.ET_DYN {
		return fmt.Errorf("it is of type %s, a shared object (ET_DYN) is needed", f.Type)
	}
	syms, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return fmt.Errorf("its dynamic symbols cannot be read: %w", err)
	}
	var other []string
	for _, s := range syms {
		if s.Section == elf.SHN_UNDEF || !strings.HasPrefix(s.Name, entryPrefix) {
			continue
		}
		if s.Name == entryName {
			return nil
		}
		other = append(other, s.Name)
	}
	if len(other) > 0 {
		return fmt.Errorf("it exports %s, this release accepts %s (ABI major %d): install a library built for it", strings.Join(other, ", "), entryName, abi.ABIMajor)
	}
	return fmt.Errorf("it does not export %s: it is not a deepinfer backend", entryName)
}
