package catalogue

import (
	"archive/tar"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"path"
)

// images has a directory for each image of a Dockerfile. Its files are the context of the
// build.
//
//go:embed all:images
var images embed.FS

// root is the directory of images.
const root = "images"

// The modes of what is in a context. A file of this binary has no mode of its own, so each
// script is started by its interpreter.
const (
	modeFile = 0o644
	modeDir  = 0o755
)

// Files returns the directory of an image that a Dockerfile makes.
func Files(name string) (fs.FS, error) { return fs.Sub(images, path.Join(root, name)) }

// Sum returns the SHA-256 sum of all names and contents in the directory of an image, in
// hexadecimal. Another sum is another image.
func Sum(name string) (string, error) {
	sum := sha256.New()
	err := walk(name, func(file string, content []byte) error {
		_, err := fmt.Fprintf(sum, "%q %d\n%s", file, len(content), content)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// Context writes the directory of an image as a tar, the same bytes each time.
func Context(name string, to io.Writer) error {
	w := tar.NewWriter(to)
	err := walk(name, func(file string, content []byte) error {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: modeFile, Size: int64(len(content))}
		if content == nil {
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, file+"/", modeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	})
	if err != nil {
		return fmt.Errorf("pack the directory of %s: %w", name, err)
	}
	return w.Close()
}

// walk calls fn with each directory, without content, and with each file of an image in the
// order of their names.
func walk(name string, fn func(file string, content []byte) error) error {
	files, err := Files(name)
	if err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == "." {
			return err
		}
		if d.IsDir() {
			return fn(file, nil)
		}
		content, err := fs.ReadFile(files, file)
		if err != nil {
			return err
		}
		return fn(file, append([]byte{}, content...)) // never nil
	})
}
