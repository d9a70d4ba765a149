package backup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"github.com/dozehq/doze"
)

const (
	// passphraseMax bounds the file with a passphrase.
	passphraseMax = 4096
	// passphraseMin is what a passphrase must have: shorter ones are guessed.
	passphraseMin = 12
	// windowMax bounds the memory that a backup makes a reader of it take.
	windowMax = 64 << 20
	// workMax bounds the work that a passphrase makes: 2^22 takes some 4 GiB of memory
	// for seconds, and the library writes 2^18.
	workMax = 20
	// ageMark begins what age encrypts.
	ageMark = "age-encryption.org/"
)

// A passphrase is what a backup is encrypted with. It cannot be printed.
type passphrase struct{ text string }

// String implements [fmt.Stringer].
func (passphrase) String() string { return "(not shown)" }

// GoString implements [fmt.GoStringer].
func (passphrase) GoString() string { return "(not shown)" }

// readPassphrase reads a file that has a passphrase and nothing else.
func readPassphrase(file string) (p passphrase, err error) {
	f, err := os.Open(file)
	if err != nil {
		return p, fmt.Errorf("read the passphrase: %w", err)
	}
	defer func() { _ = f.Close() }() // it was read
	raw, err := io.ReadAll(io.LimitReader(f, passphraseMax+1))
	if err != nil {
		return p, fmt.Errorf("read the passphrase: %w", err)
	}
	p.text = strings.TrimRight(string(raw), "\r\n")
	if len(p.text) < passphraseMin || len(raw) > passphraseMax || strings.ContainsAny(p.text, "\r\n") {
		return p, doze.Errorf(doze.Invalid, "%s must have one line with a passphrase of %d to %d bytes", file, passphraseMin, passphraseMax)
	}
	return p, nil
}

// packed is a stream that is compressed, and encrypted if there is a passphrase.
type packed struct {
	*zstd.Encoder
	to        *bufio.Writer
	encrypted io.WriteCloser // nil: it is not
}

// pack returns what packs into w. Close completes it, and leaves w open.
func pack(w io.Writer, file string) (*packed, error) {
	p := &packed{to: bufio.NewWriterSize(w, 1<<20)}
	to := io.Writer(p.to)
	if file != "" {
		secret, err := readPassphrase(file)
		if err != nil {
			return nil, err
		}
		recipient, err := age.NewScryptRecipient(secret.text)
		if err != nil {
			return nil, fmt.Errorf("encrypt the backup: %w", err)
		}
		if p.encrypted, err = age.Encrypt(to, recipient); err != nil {
			return nil, fmt.Errorf("encrypt the backup: %w", err)
		}
		to = p.encrypted
	}
	var err error
	p.Encoder, err = zstd.NewWriter(to, zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(4<<20))
	return p, err
}

// Close writes what is left.
func (p *packed) Close() error {
	if err := p.Encoder.Close(); err != nil {
		return err
	}
	if p.encrypted != nil {
		if err := p.encrypted.Close(); err != nil {
			return err
		}
	}
	return p.to.Flush()
}

// discard ends the goroutines of a stream that nobody completes.
func (p *packed) discard() error {
	p.Reset(io.Discard)
	return p.Encoder.Close()
}

// unpack returns what is in a stream that pack wrote. The caller closes it.
func unpack(r io.Reader, file string) (io.ReadCloser, error) {
	from := bufio.NewReaderSize(r, 1<<20)
	head, err := from.Peek(len(ageMark))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the backup: %w", err)
	}
	plain := io.Reader(from)
	switch encrypted := bytes.Equal(head, []byte(ageMark)); {
	case encrypted && file == "":
		return nil, doze.Errorf(doze.Invalid, "the backup is encrypted: give its passphrase with --passphrase-file")
	case !encrypted && file != "":
		return nil, doze.Errorf(doze.Invalid, "the backup is not encrypted: leave out --passphrase-file")
	case encrypted:
		secret, err := readPassphrase(file)
		if err != nil {
			return nil, err
		}
		identity, err := age.NewScryptIdentity(secret.text)
		if err != nil {
			return nil, fmt.Errorf("decrypt the backup: %w", err)
		}
		identity.SetMaxWorkFactor(workMax)
		if plain, err = age.Decrypt(from, identity); err != nil {
			return nil, doze.Wrap(err, doze.Invalid, "the backup does not open with this passphrase")
		}
	}
	d, err := zstd.NewReader(plain, zstd.WithDecoderMaxWindow(windowMax), zstd.WithDecoderConcurrency(2))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// interruptible is a reader that fails when a context ends. One that waits for its input
// goes on to wait: the end of the process ends that.
type interruptible struct {
	ctx context.Context //nolint:containedctx // it is that of the one call that reads
	io.Reader
}

// Read implements [io.Reader].
func (r interruptible) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(b)
}
