//! The sender's half of Frame Streams (<https://farsightsec.github.io/fstrm/>). A data frame has
//! its length in front. A control frame follows a length of 0.
//!
//! ```text
//!  ─> READY(content type)    <─ ACCEPT(content type)
//!  ─> START(content type), data …, STOP    <─ FINISH
//! ```

use strum::FromRepr;

/// Content type of the data frames, which both ends must agree on.
pub(super) const CONTENT_TYPE: &[u8] = b"protobuf:dnstap.Dnstap";

/// Largest size in bytes of a control frame, by the specification of Frame Streams.
const MAX_CONTROL: u32 = 512;

/// Number of the content type's field, the only kind of field in control frames.
const FIELD_CONTENT_TYPE: u32 = 1;

/// Types of control frames in Frame Streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr)]
#[repr(u32)]
pub(super) enum ControlFrame {
    Accept = 1,
    Start = 2,
    Stop = 3,
    Ready = 4,
    Finish = 5,
}

impl ControlFrame {
    /// Returns this control frame's bytes, with the header.
    pub(super) fn frame(self) -> Vec<u8> {
        let mut payload = (self as u32).to_be_bytes().to_vec();
        if matches!(self, Self::Ready | Self::Start | Self::Accept) {
            payload.extend(FIELD_CONTENT_TYPE.to_be_bytes());
            payload.extend((CONTENT_TYPE.len() as u32).to_be_bytes());
            payload.extend(CONTENT_TYPE);
        }
        let mut frame = vec![0; 4];
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Parses the payload of a control frame. Content types that it lists must include ours.
    pub(super) fn read(payload: &[u8]) -> Result<Self, &'static str> {
        let (kind, mut fields) =
            number(payload).ok_or("the collector sent a control frame without a type")?;
        let control = Self::from_repr(kind).ok_or("the collector sent a control frame of an unknown type")?;
        let mut types = Vec::new();
        while !fields.is_empty() {
            let field = number(fields).and_then(|(field, rest)| {
                let (length, rest) = number(rest)?;
                let (value, rest) = rest.split_at_checked(length as usize)?;
                Some((field, value, rest))
            });
            let (field, value, rest) =
                field.ok_or("the collector sent a control frame whose field is cut off")?;
            if field == FIELD_CONTENT_TYPE {
                types.push(value);
            }
            fields = rest;
        }
        // A frame without content types allows any.
        if types.is_empty() || types.contains(&CONTENT_TYPE) {
            Ok(control)
        } else {
            Err("the collector does not accept dnstap messages")
        }
    }
}

/// Returns the length of a control frame's payload in bytes, from the frame's header.
pub(super) fn control_len(header: [u8; 8]) -> Result<usize, &'static str> {
    match header {
        [0, 0, 0, 0, length @ ..] => Some(u32::from_be_bytes(length))
            .filter(|length| *length <= MAX_CONTROL)
            .map(|length| length as usize)
            .ok_or("the collector sent a control frame that is too long"),
        _ => Err("the collector sent data instead of a control frame"),
    }
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u32::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_are_encoded_as_in_the_specification() {
        let start = b"\0\0\0\0\0\0\0\x22\0\0\0\x02\0\0\0\x01\0\0\0\x16protobuf:dnstap.Dnstap";
        assert_eq!(ControlFrame::Start.frame(), start);
        assert_eq!(ControlFrame::Stop.frame(), b"\0\0\0\0\0\0\0\x04\0\0\0\x03");
        for control in (1..=5).map(|kind| ControlFrame::from_repr(kind).unwrap()) {
            let frame = control.frame();
            let (header, payload) = frame.split_first_chunk().unwrap();
            assert_eq!(control_len(*header), Ok(payload.len()));
            assert_eq!(ControlFrame::read(payload), Ok(control));
        }
    }

    #[test]
    fn a_malformed_control_frame_is_refused() {
        for (payload, reason) in [
            (&b""[..], "without a type"),
            (b"\0\0\0\x01\0", "cut off"),
            (b"\0\0\0\x01\0\0\0\x01\0\0\0\x03ab", "cut off"),
            (b"\0\0\0\x01\0\0\0\x01\xff\xff\xff\xffab", "cut off"),
            (b"\0\0\0\x01\0\0\0\x01\0\0\0\x01x", "does not accept"),
            (b"\0\0\0\x06", "unknown"),
        ] {
            assert!(ControlFrame::read(payload).unwrap_err().contains(reason), "{payload:?}");
        }
        // Unknown fields are ignored, and so are other content types beside ours.
        let types = [
            &b"\0\0\0\x01\0\0\0\x07\0\0\0\x01x\0\0\0\x01\0\0\0\x01x"[..],
            &ControlFrame::Ready.frame()[12..],
        ];
        assert_eq!(ControlFrame::read(&types.concat()), Ok(ControlFrame::Accept));
        assert!(control_len([0, 0, 0, 0, 0, 0, 2, 1]).is_err());
        assert!(control_len([0, 0, 0, 1, 0, 0, 0, 4]).is_err());
    }
}
