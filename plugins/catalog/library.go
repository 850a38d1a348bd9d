package catalog

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// machines maps GOARCH to the ELF machine.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "riscv64": elf.EM_RISCV, "loong64": elf.EM_LOONGARCH, "ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390}

// entryPrefix begins the one symbol a backend exports; the ABI major follows.
const entryPrefix = "di_backend_v"

// CheckLibrary looks at a library without loading it: ELF shared object, 64-bit little endian, machine of arch, exporting di_backend_v1.
func CheckLibrary(r io.ReaderAt, arch string) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("not an ELF file: %w", err)
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return fmt.Errorf("is %s %s, need a 64-bit little-endian object", f.Class, f.Data)
	}
	if f.Type != elf.ET_DYN {
		return fmt.Errorf("is %s, need a shared object (ET_DYN)", f.Type)
	}
	if want, ok := machines[arch]; !ok || f.Machine != want {
		return fmt.Errorf("is built for %s, this machine is %s", f.Machine, arch)
	}
	syms, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return fmt.Errorf("dynamic symbols: %w", err)
	}
	entry := fmt.Sprintf("%s%d", entryPrefix, abi.ABIMajor)
	var others []string
	for _, s := range syms {
		if s.Section == elf.SHN_UNDEF || elf.ST_TYPE(s.Info) != elf.STT_FUNC || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		if s.Name == entry {
			return nil
		}
		if strings.HasPrefix(s.Name, entryPrefix) {
			others = append(others, s.Name)
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("exports %s, this release loads %s (ABI major %d); install a library built for it", strings.Join(others, ", "), entry, abi.ABIMajor)
	}
	return fmt.Errorf("does not export %s; is this a deepinfer backend?", entry)
}
