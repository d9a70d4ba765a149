package disk_test

import (
	"flag"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/disk"
)

// The recipes need a package mirror and a minute, so they are made only on
// demand: go test ./internal/disk -run Recipes -recipes /a/directory
var recipeDir = flag.String("recipes", "", "make the platform's images in this directory")

func TestRecipes(t *testing.T) {
	if *recipeDir == "" {
		t.Skip("SKIPPED: making images needs a package mirror; say where with -recipes")
	}
	lib, err := disk.Open(*recipeDir, disk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	for _, ref := range []string{"slim", "base"} {
		begin, steps := time.Now(), 0
		img, err := lib.Ensure(t.Context(), ref, func(p disk.Progress) {
			steps++
			t.Logf("%5.1fs %3d%% %s", time.Since(begin).Seconds(), p.Percent, p.Step)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d MB in %v, %s", ref, img.Bytes>>20, time.Since(begin), img.Digest)
	}
}
