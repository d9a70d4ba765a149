package text

import "unicode/utf8"

// Carry holds back the bytes of a character that is not complete yet, so that
// a stream of pieces can be sent as text.
type Carry struct{ held []byte }

// Add returns the complete text of what was held and b.
func (c *Carry) Add(b []byte) string {
	if len(c.held) > 0 {
		b = append(c.held, b...)
	}
	carried := 0
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				carried = i
			}
			break
		}
	}
	s := string(b[:len(b)-carried])
	c.held = append([]byte(nil), b[len(b)-carried:]...)
	return s
}

// Rest returns what was held back for good.
func (c *Carry) Rest() string {
	s := string(c.held)
	c.held = nil
	return s
}
