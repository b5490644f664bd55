package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// A dialError is why there is no connection, in words of our own.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// describe words an error of the way to a server for a log and a page, without the addresses of our own side and without a
// word of the server's: a line that it garbles, the names in its certificate or its farewell may hold what was put into a request.
func describe(err error) string {
	if own, ok := errors.AsType[*dialError](err); ok {
		return own.Error()
	}
	if errors.Is(err, ErrUpstream) {
		return err.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Op + ": " + op.Err.Error()
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return describeCertificate(err)
	}
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	network, ok := errors.AsType[net.Error](err)
	switch {
	case noTLS, errors.Is(err, http.ErrSchemeMismatch):
		return "it does not speak TLS"
	case errors.Is(err, context.DeadlineExceeded), ok && network.Timeout():
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "given up"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it closed the connection"
	}
	return "its answer is malformed or too large"
}

func describeCertificate(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "its certificate is signed by an unknown authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "its certificate is for another name"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "its certificate has expired or is not valid yet"
	}
	return "its certificate cannot be verified"
}
