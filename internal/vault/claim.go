package vault

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// racesMost is how often a call begins again because others changed what it read.
const racesMost = 5

// Claim makes an epoch the newest of a sandbox, and returns the generation that it goes on
// from. That is the zero Generation if there is none. From then on, no generation of an
// older epoch counts but this one. To claim an epoch again changes nothing. If a newer one
// was claimed, the error is ErrSuperseded.
//
// A claim that fails may count all the same. The caller claims again, or a newer epoch.
func (v *Vault) Claim(ctx context.Context, id string, epoch uint64) (Generation, error) {
	if err := errors.Join(checkID(id), checkEpoch(epoch)); err != nil {
		return Generation{}, err
	}
	claims, err := v.claimsUpTo(ctx, id, epoch)
	if err != nil {
		return Generation{}, err
	}
	if len(claims) == 0 || claims[len(claims)-1] < epoch {
		if err := v.put(ctx, v.key(id, kindClaim, hexOf(epoch)), nil, false); err != nil {
			return Generation{}, err
		}
		// An epoch that was claimed meanwhile must not take this one for older and
		// unused.
		if claims, err = v.claimsUpTo(ctx, id, epoch); err != nil {
			return Generation{}, err
		}
		if len(claims) == 0 {
			return Generation{}, fmt.Errorf("%w: %s was dropped", ErrSuperseded, id)
		}
	}
	return v.standing(ctx, id, claims)
}

// Claimed returns the newest epoch that a node claimed. It is 0 if none did, and if the sandbox was
// dropped.
func (v *Vault) Claimed(ctx context.Context, id string) (epoch uint64, err error) {
	if err := checkID(id); err != nil {
		return 0, err
	}
	claims, err := v.claims(ctx, id)
	if err != nil || len(claims) == 0 || claims[len(claims)-1] == dropped {
		return 0, err
	}
	return claims[len(claims)-1], nil
}

// claims returns the epochs that were claimed, the oldest first.
func (v *Vault) claims(ctx context.Context, id string) (all []uint64, err error) {
	err = v.list(ctx, id, kindClaim, "", func(o object) error {
		if epoch, ok := parseHex(o.rest); ok && epoch > 0 {
			all = append(all, epoch)
		}
		return nil
	})
	slices.Sort(all)
	return all, err
}

// claimsUpTo returns the epochs that were claimed. One that is newer than the caller's is
// ErrSuperseded.
func (v *Vault) claimsUpTo(ctx context.Context, id string, epoch uint64) ([]uint64, error) {
	all, err := v.claims(ctx, id)
	if err != nil || len(all) == 0 {
		return all, err
	}
	switch last := all[len(all)-1]; {
	case last == dropped:
		return nil, fmt.Errorf("%w: %s was dropped", ErrSuperseded, id)
	case last > epoch:
		return nil, fmt.Errorf("%w: epoch %d of %s was claimed, which is newer than %d", ErrSuperseded, last, id, epoch)
	}
	return all, nil
}

// head returns the newest generation that counts; the zero Generation if there is none.
func (v *Vault) head(ctx context.Context, id string) (Generation, error) {
	claims, err := v.claims(ctx, id)
	switch {
	case err != nil:
		return Generation{}, err
	case len(claims) == 0:
		return Generation{}, fmt.Errorf("%w: nobody saved %s", ErrNotFound, id)
	case claims[len(claims)-1] == dropped:
		return Generation{}, fmt.Errorf("%w: %s was dropped", ErrNotFound, id)
	}
	return v.standing(ctx, id, claims)
}

// standing returns the newest generation that counts under some claims: the last of the
// newest epoch, or what that goes on from.
func (v *Vault) standing(ctx context.Context, id string, claims []uint64) (Generation, error) {
	epoch := claims[len(claims)-1]
	var newest Generation
	err := v.list(ctx, id, kindManifest, hexOf(epoch)+"-", func(o object) error {
		if g, ok := parseGeneration(hexOf(epoch) + "-" + o.rest); ok && newest.Before(g) {
			newest = g
		}
		return nil
	})
	if err != nil || newest.Epoch > 0 {
		return newest, err
	}
	return v.base(ctx, id, claims)
}

// base returns what the newest of some claims goes on from. The first call for an epoch
// decides it, and all others learn that.
func (v *Vault) base(ctx context.Context, id string, claims []uint64) (Generation, error) {
	epoch := claims[len(claims)-1]
	g, err := v.readBase(ctx, id, epoch)
	if !errors.Is(err, errAbsent) {
		return g, err
	}
	if older := claims[:len(claims)-1]; len(older) > 0 {
		if g, err = v.standing(ctx, id, older); err != nil {
			return Generation{}, err
		}
	}
	err = v.put(ctx, v.key(id, kindBase, hexOf(epoch)), []byte(g.String()), true)
	if errors.Is(err, errExists) {
		return v.readBase(ctx, id, epoch)
	}
	return g, err
}

// readBase returns what an epoch goes on from, if that is decided.
func (v *Vault) readBase(ctx context.Context, id string, epoch uint64) (Generation, error) {
	raw, err := v.get(ctx, v.key(id, kindBase, hexOf(epoch)), 2*digits+1)
	if err != nil {
		return Generation{}, err
	}
	return parseBase(string(raw), epoch)
}

// parseBase reads the generation that an epoch goes on from, or that there is none.
func parseBase(text string, epoch uint64) (Generation, error) {
	g, ok := parseGeneration(text)
	if !ok && text == (Generation{}).String() {
		return Generation{}, nil
	}
	if !ok || g.Epoch >= epoch {
		return Generation{}, fmt.Errorf("%w: what epoch %d goes on from is %q", ErrDamaged, epoch, text)
	}
	return g, nil
}
