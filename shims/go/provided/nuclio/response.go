package nuclio

import "io"

// ProcessingResult is an answer, whole or as a stream.
type ProcessingResult interface {
	IsStream() bool
	GetHeaders() map[string]interface{}
	GetContentType() string
	GetStatusCode() int
	SetStatusCode(int)
	GetBody() interface{}
}

// Response is a whole answer. A StatusCode of 0 stands for 200.
type Response struct {
	StatusCode  int
	ContentType string
	Headers     map[string]interface{}
	Body        []byte
}

func (r *Response) IsStream() bool                     { return false }
func (r *Response) GetHeaders() map[string]interface{} { return r.Headers }
func (r *Response) GetContentType() string             { return r.ContentType }
func (r *Response) GetStatusCode() int                 { return r.StatusCode }
func (r *Response) SetStatusCode(status int)           { r.StatusCode = status }
func (r *Response) GetBody() interface{}               { return r.Body }

// ResponseStream is an answer whose body is written while it is sent.
type ResponseStream struct {
	contentType string
	headers     map[string]interface{}
	status      int
	reader      io.ReadCloser
	writer      io.Writer
}

// NewResponseStream returns a stream whose chunks are sent as they are written.
func NewResponseStream(contentType string, headers map[string]interface{}, status int) *ResponseStream {
	reader, writer := io.Pipe()
	return NewCustomResponseStream(contentType, headers, status, reader, writer)
}

// NewCustomResponseStream returns a stream that is read from reader.
func NewCustomResponseStream(contentType string, headers map[string]interface{}, status int, reader io.ReadCloser, writer io.Writer) *ResponseStream {
	return &ResponseStream{contentType, headers, status, reader, writer}
}

func (s *ResponseStream) IsStream() bool                     { return true }
func (s *ResponseStream) GetHeaders() map[string]interface{} { return s.headers }
func (s *ResponseStream) GetContentType() string             { return s.contentType }
func (s *ResponseStream) GetStatusCode() int                 { return s.status }
func (s *ResponseStream) SetStatusCode(status int)           { s.status = status }
func (s *ResponseStream) GetBody() interface{}               { return s.reader }
func (s *ResponseStream) GetWriter() io.Writer               { return s.writer }

// SendChunk writes a part of the body.
func (s *ResponseStream) SendChunk(chunk []byte) (int, error) { return s.writer.Write(chunk) }

// StreamFrom copies everything from a reader, and waits until the reader ends.
func (s *ResponseStream) StreamFrom(reader io.Reader) (int64, error) {
	return io.Copy(s.writer, reader)
}

// StopStreaming ends the body.
func (s *ResponseStream) StopStreaming() {
	if closer, ok := s.writer.(io.Closer); ok {
		closer.Close()
	}
}
