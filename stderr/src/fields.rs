//! Fields of an event, without characters that steer a terminal. The rest of a line is the program's own.

use std::fmt::{self, Write as _};
use std::io;

use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{DefaultFields, FormatFields, Writer};

use crate::TerminalSafe;
use crate::escape::needs_escape;

/// Fields of events and spans as tracing's own format has them, escaped.
#[derive(Debug)]
pub(crate) struct Plain;

impl<'w> FormatFields<'w> for Plain {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        write!(writer, "{}", TerminalSafe(&text))
    }
}

/// Writes JSON objects, one at a time, in which what the writer of JSON leaves as it is is escaped, too.
#[derive(Debug)]
pub(crate) struct Json<W>(pub(crate) W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for Json<W> {
    type Writer = Line<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        Line(self.0.make_writer())
    }
}

/// Writer of one line.
#[derive(Debug)]
pub(crate) struct Line<W>(W);

impl<W: io::Write> io::Write for Line<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match str::from_utf8(line) {
            Ok(text) if text.trim_end_matches('\n').contains(needs_escape) => {
                self.0.write_all(escaped(text).as_bytes())?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// All of these characters stand in strings, but for the line's end, and none is beyond U+FFFF.
fn escaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if needs_escape(c) && c != '\n' {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}
