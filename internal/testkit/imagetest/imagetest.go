// Package imagetest looks at images, for tests of what writes and serves them.
package imagetest

import (
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// Verify compares all of an image with uncompressed layers with its digests. The library
// has such a function, which wants each layer compressed.
func Verify(img v1.Image) error {
	if err := validate.Image(img, validate.Fast); err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		want, err := l.Digest()
		if err != nil {
			return err
		}
		diff, err := l.DiffID()
		if err != nil {
			return err
		}
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		got, _, err := v1.SHA256(r)
		if err := errors.Join(err, r.Close()); err != nil || got != want || got != diff {
			return fmt.Errorf("a layer is %s, and not %s or %s: %w", got, want, diff, err)
		}
	}
	return nil
}
