package instance

import (
	"context"
	"flag"
	"io"

	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/settings"
)

// Certificates makes the certificates by which the roles of a platform know each other, and
// says which role needs which.
type Certificates struct{ Out io.Writer }

// Bind adds no flags: the directory is a setting.
func (*Certificates) Bind(*flag.FlagSet) {}

// Do makes the certificates.
func (c *Certificates) Do(_ context.Context, s settings.Settings) error {
	files, err := mtls.Make(s.FleetKeys)
	if err == nil {
		files.Print(c.Out)
	}
	return err
}
