package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// errNoOverlay says that this host cannot show an image with other files over it.
var errNoOverlay = errors.New("images cannot be mounted here")

// overlaid has fn work in a directory that shows the files of an image. What fn changes
// is below work, and the image stays as it is. Only fn and the programs that it starts
// see the mounts, which end with fn, or with this process. fn must not leave its
// goroutine. If the error is errNoOverlay, fn was not called.
func overlaid(ctx context.Context, work, image string, fn func(dir string) error) error {
	dirs := map[string]string{}
	for _, name := range []string{"lower", "upper", "scratch", "merged"} {
		dirs[name] = filepath.Join(work, name)
		if err := os.Mkdir(dirs[name], 0o755); err != nil { //nolint:gosec // G301: one of them is the root directory of the image
			return fmt.Errorf("make a directory to mount on: %w", err)
		}
	}
	if strings.ContainsAny(work, `,:\`) { // they mean something in the options of a mount
		return errNoOverlay
	}
	return apart(func() (err error) {
		if err := mountImage(ctx, image, dirs["lower"]); err != nil {
			return fmt.Errorf("%w: %w", errNoOverlay, err)
		}
		defer func() { err = errors.Join(err, unix.Unmount(dirs["lower"], unix.MNT_DETACH)) }()
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dirs["lower"], dirs["upper"], dirs["scratch"])
		if err := unix.Mount("overlay", dirs["merged"], "overlay", 0, options); err != nil {
			return fmt.Errorf("%w: %w", errNoOverlay, err)
		}
		defer func() { err = errors.Join(err, unix.Unmount(dirs["merged"], unix.MNT_DETACH)) }()
		return fn(dirs["merged"])
	})
}

// mountImage mounts the file of an image: as it is, or by a loop device where the kernel
// is older than 6.12.
func mountImage(ctx context.Context, image, dir string) error {
	if unix.Mount(image, dir, "erofs", unix.MS_RDONLY, "") == nil {
		return nil
	}
	_, err := run(ctx, "mount", "-t", "erofs", "-o", "ro,loop", image, dir)
	return err
}

// apart runs fn in a mount namespace of its own.
func apart(fn func() error) error {
	done := make(chan error, 1)
	go onThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			done <- fmt.Errorf("%w: %w", errNoOverlay, err)
			return
		}
		// Nothing that is mounted here is seen outside. What others unmount goes here too.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			done <- fmt.Errorf("%w: %w", errNoOverlay, err)
			return
		}
		done <- fn()
	})
	return <-done
}

// onThread runs fn on a thread that ends with it, and is not the first one of the
// process, which never ends.
func onThread(fn func()) {
	runtime.LockOSThread() // and it stays locked: then the thread ends with the goroutine
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThread(fn) // this thread is taken, so it is another one
	}()
	<-done
	runtime.UnlockOSThread()
}
