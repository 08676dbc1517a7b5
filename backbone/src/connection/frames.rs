//! The bytes of a NATS server, frame by frame, in a form in which the client library can read every one of them.
//!
//! On headers or subjects that it cannot read, the library ends its connection, and with it everything that was on its
//! way to others. So such a message is written anew before the library sees it: with the headers that can be read, and
//! [`names::UNREADABLE`], which says what is wrong with the others. Payloads pass byte for byte. An INFO loses what
//! only [`crate::connection::filter`] has to know: the other servers, and TLS.
//!
//! It reads and writes no socket.

use bytes::{BufMut as _, BytesMut};
use serde_json::Value;

use crate::messages::raw;
use crate::wire::header::names;

/// A server's bytes that are no NATS.
#[derive(Debug, thiserror::Error)]
#[error("the server's bytes are no NATS: {0}")]
pub(crate) struct Garbled(String);

/// Where in a server's bytes the reader is.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// How many bytes of the current message's payload, its line break included, are still to be passed on.
    payload: usize,
    /// The servers of the cluster, as the last INFO had them.
    pub(crate) servers: Vec<String>,
}

impl Frames {
    /// Moves every whole frame from `read` to `out`, and payloads as far as they have come.
    pub(crate) fn pass(&mut self, read: &mut BytesMut, out: &mut BytesMut) -> Result<(), Garbled> {
        loop {
            let come = self.payload.min(read.len());
            out.put(read.split_to(come));
            self.payload -= come;
            if self.payload > 0 {
                return Ok(());
            }
            let Some(end) = line_end(read) else { return Ok(()) };
            let line = &read[..end];
            if line.starts_with(b"HMSG ") {
                let (headers, total) = (number(line, 1)?, number(line, 0)?);
                if read.len() < end + headers {
                    return Ok(());
                }
                let (line, headers) = (read.split_to(end), read.split_to(headers));
                self.payload = total.checked_sub(headers.len()).ok_or_else(|| garbled(&line))? + 2;
                pass_headers(&line, &headers, total, out);
                continue;
            }
            if line.starts_with(b"MSG ") {
                self.payload = number(line, 0)? + 2;
            }
            let line = read.split_to(end);
            match line.strip_prefix(b"INFO ") {
                Some(info) => out.put_slice(format!("INFO {}\r\n", self.info(info)?).as_bytes()),
                None => out.put_slice(String::from_utf8_lossy(&line).as_bytes()),
            }
        }
    }

    fn info(&mut self, json: &[u8]) -> Result<Value, Garbled> {
        let info: Option<Value> = serde_json::from_slice(json).ok().filter(Value::is_object);
        let mut info = info.ok_or_else(|| garbled(json))?;
        self.servers = serde_json::from_value(info["connect_urls"].take()).unwrap_or_default();
        for name in ["tls_required", "tls_verify", "tls_available"] {
            info[name] = Value::Bool(false);
        }
        info["connect_urls"] = Value::Array(Vec::new());
        Ok(info)
    }
}

/// The end of the first line, if it has come.
pub(crate) fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}

fn garbled(line: &[u8]) -> Garbled {
    Garbled(line.escape_ascii().to_string())
}

/// A number in a line, the last being the one `from_end` 0.
fn number(line: &[u8], from_end: usize) -> Result<usize, Garbled> {
    let text = line.trim_ascii_end().rsplit(|byte| *byte == b' ').nth(from_end);
    text.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()).ok_or_else(|| garbled(line))
}

/// Passes on a message's line and its headers, so that the library can read both.
fn pass_headers(line: &[u8], headers: &[u8], total: usize, out: &mut BytesMut) {
    let reason = raw::fault_on_the_way(headers);
    if reason.is_none() && line.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n')) {
        out.put_slice(line);
        out.put_slice(headers);
        return;
    }
    let made = reason.map_or_else(|| headers.to_vec(), |reason| made_readable(headers, &reason));
    let line = String::from_utf8_lossy(line);
    let mut words: Vec<String> = line
        .trim_end_matches(['\r', '\n'])
        .split(' ')
        .map(|word| word.replace(char::is_whitespace, "\u{fffd}"))
        .collect();
    words.truncate(words.len().saturating_sub(2));
    let (size, total) = (made.len(), total - headers.len() + made.len());
    out.put_slice(format!("{} {size} {total}\r\n", words.join(" ")).as_bytes());
    out.put_slice(&made);
}

/// The headers that can be read, and why the others cannot.
fn made_readable(headers: &[u8], reason: &str) -> Vec<u8> {
    let mut made = format!("NATS/1.0\r\n{}: {reason}\r\n", names::UNREADABLE);
    for (name, values) in raw::readable(headers).iter() {
        for value in values {
            made.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    made.push_str("\r\n");
    made.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: &[u8]) -> Vec<u8> {
        let line = format!("HMSG a 7 _INBOX.x {} {}\r\n", headers.len(), headers.len() + 2);
        [line.as_bytes(), headers, b"ok\r\n"].concat()
    }

    /// What the library is given of these bytes, which come in pieces of that many.
    fn passed(bytes: &[u8], piece: usize) -> String {
        let (mut frames, mut read, mut out) = (Frames::default(), BytesMut::new(), BytesMut::new());
        for piece in bytes.chunks(piece) {
            read.put_slice(piece);
            frames.pass(&mut read, &mut out).unwrap();
        }
        assert!(read.is_empty(), "{read:?}");
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn what_the_library_can_read_passes_byte_for_byte() {
        let mut all = b"PING\r\n+OK\r\nMSG a.b 1 12\r\nHMSG a\r\nPING\r\nMSG a 1 r 0\r\n\r\n-ERR 'x'\r\n".to_vec();
        all.extend(message(b"NATS/1.0\r\nA: b\r\n\r\n"));
        all.extend(message(b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n"));
        all.extend(message(b"NATS/1.0 409 Consumer Deleted\r\n\r\n"));
        for piece in [1, 2, 7, all.len()] {
            assert_eq!(passed(&all, piece).as_bytes(), all);
        }
    }

    #[test]
    fn a_message_that_the_library_cannot_read_is_made_one_that_it_can() {
        for (headers, says) in [
            (b"NATS/1.0\r\nA: b\r\nX-User: Jos\xe9\r\n\r\n".as_slice(), "X-User is not UTF-8"),
            (b"NATS/1.0\r\nA: b\r\nno colon\r\n\r\n", "line 3 has no colon"),
            (b"NATS/1.0\r\nA: b\r\nX: a\rb\r\n\r\n", "X has a carriage return in its value"),
            (b"NATS/1.0 garbage\r\nA: b\r\n\r\n", "have more than NATS/1.0 in the first line"),
        ] {
            let all = [message(headers), b"PING\r\n".to_vec()].concat();
            let made = format!("NATS/1.0\r\nLongshore-Unreadable: {says}\r\nA: b\r\n\r\n");
            assert_eq!(raw::fault_on_the_way(made.as_bytes()), None);
            let (size, total) = (made.len(), made.len() + 2);
            for piece in [1, 5, all.len()] {
                assert_eq!(passed(&all, piece), format!("HMSG a 7 _INBOX.x {size} {total}\r\n{made}ok\r\nPING\r\n"));
            }
        }
    }

    #[test]
    fn subjects_have_no_blank_and_are_text() {
        let headers = "NATS/1.0\r\n\r\n";
        let line = format!("HMSG a.\u{a0}b.\u{b}c 7 12 14\r\n{headers}ok\r\n");
        assert_eq!(passed(line.as_bytes(), 3), format!("HMSG a.\u{fffd}b.\u{fffd}c 7 12 14\r\n{headers}ok\r\n"));
        assert_eq!(passed(b"MSG a.\xff 7 2\r\n\xc3\xa4\r\n", 4), "MSG a.\u{fffd} 7 2\r\n\u{e4}\r\n");
    }

    #[test]
    fn an_info_names_no_other_server_and_no_tls() {
        let (mut frames, mut out) = (Frames::default(), BytesMut::new());
        let info = r#"INFO {"server_id":"x","tls_required":true,"connect_urls":["a:1","b:2"]}"#;
        frames.pass(&mut BytesMut::from(format!("{info}\r\n").as_bytes()), &mut out).unwrap();
        assert_eq!(frames.servers, ["a:1", "b:2"]);
        let info: Value = serde_json::from_slice(&out[5..]).unwrap();
        assert_eq!(
            (&info["server_id"], &info["tls_required"], &info["connect_urls"]),
            (&"x".into(), &false.into(), &Value::Array(Vec::new()))
        );
        for garbled in ["MSG a 7 many\r\n", "HMSG a 7 12 2\r\nNATS/1.0\r\n\r\n", "INFO no\r\n"] {
            assert!(Frames::default().pass(&mut BytesMut::from(garbled), &mut BytesMut::new()).is_err(), "{garbled}");
        }
    }
}
