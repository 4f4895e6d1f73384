//! Questions of `multinet matrix` to a server, and its answers: JSON in the metadata of frames.
//!
//! As for a latency test, the server connects back to the address that the question comes from. A
//! server of an older version takes the question for one, and sends an empty frame: so the asker
//! learns that this server does not take part.

use std::net::IpAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Extent, MAX_SIZE};

/// Longest measurement that a server makes on request, in seconds.
pub(crate) const MAX_SECONDS: u32 = 10;

/// Most bytes that a server sends on request in one measurement: as many as a link of 400 Gb/s
/// carries in the longest time.
const MAX_BYTES: u64 = 500_000_000_000;

/// Most bytes of the reason in an answer, whose metadata has room for 4096.
const MAX_REASON: usize = 1000;

/// Question to a server.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Question {
    /// Port on which the asker listens, at the address that it comes from.
    pub(crate) echo_to_port: u16,
    pub(crate) measure: Task,
}

/// Measurement that a server is asked for. It goes to the port that the server itself listens on.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Task {
    /// Number by which the asker knows the answer.
    pub(crate) id: u64,
    pub(crate) target: IpAddr,
    /// Size of a message in bytes.
    pub(crate) size: u32,
    pub(crate) seconds: u32,
}

/// Answer of a server.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) outcome: MeasurementOutcome,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasurementOutcome {
    Measured {
        bytes_per_second: f64,
        transport: String,
    },
    /// The server does not measure, for this reason.
    Refused(String),
    /// The measurement failed, for this reason.
    Failed(String),
}

impl Task {
    /// Returns the extent of the measurement, which is bounded in time and bytes.
    ///
    /// # Errors
    ///
    /// The reason why the server does not make it.
    pub(super) fn extent(&self) -> Result<Extent, String> {
        match (self.size, self.seconds) {
            (1..=MAX_SIZE, 1..=MAX_SECONDS) => Ok(Extent {
                count: MAX_BYTES / u64::from(self.size),
                time: Duration::from_secs(self.seconds.into()),
            }),
            (size, seconds) => Err(format!(
                "messages of {size} bytes for {seconds} s are not measured on request: at most {MAX_SIZE} bytes and \
                 {MAX_SECONDS} s"
            )),
        }
    }
}

impl MeasurementOutcome {
    /// Returns the outcome with as much of its reason as fits into an answer.
    pub(super) fn shortened(mut self) -> Self {
        if let Self::Refused(reason) | Self::Failed(reason) = &mut self {
            reason.truncate(reason.floor_char_boundary(MAX_REASON));
        }
        self
    }
}

pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    // Numbers and texts in structs are always JSON.
    serde_json::to_vec(message).unwrap_or_default()
}

pub(crate) fn decode<T: DeserializeOwned>(metadata: &[u8]) -> Option<T> {
    serde_json::from_slice(metadata).ok()
}

#[cfg(test)]
mod tests {
    use super::super::latency::EchoRequest;
    use super::*;

    fn task(size: u32, seconds: u32) -> Task {
        Task { id: u64::MAX, target: "192.168.111.5".parse().unwrap(), size, seconds }
    }

    /// Earlier versions know it as this only.
    #[test]
    fn a_question_is_a_request_for_echoes_to_servers_of_earlier_versions() {
        let question = Question { echo_to_port: 7, measure: task(65_536, 2) };
        let metadata = encode(&question);
        assert_eq!(decode::<Question>(&metadata), Some(question));
        assert_eq!(EchoRequest::decode(&metadata), Some(EchoRequest { echo_to_port: 7 }));
        assert_eq!(decode::<Question>(&EchoRequest { echo_to_port: 7 }.encode()), None);
    }

    #[test]
    fn a_measurement_on_request_is_bounded_in_time_and_bytes() {
        for size in [1, 65_536, MAX_SIZE] {
            let extent = task(size, MAX_SECONDS).extent().unwrap();
            assert!(extent.count * u64::from(size) <= MAX_BYTES, "{size}");
            assert_eq!(extent.time, Duration::from_secs(10));
        }
        for (size, seconds) in [(0, 1), (MAX_SIZE + 1, 1), (u32::MAX, 1), (1, 0), (1, 11), (1, u32::MAX)] {
            let refused = task(size, seconds).extent().unwrap_err();
            assert!(refused.contains("at most 8388608 bytes and 10 s"), "{refused}");
        }
    }

    #[test]
    fn an_answer_fits_into_the_metadata_of_a_frame() {
        let outcome = MeasurementOutcome::Failed("é".repeat(5000)).shortened();
        let answer = Answer { id: 1, outcome };
        assert!(encode(&answer).len() < 4096);
        assert_eq!(decode::<Answer>(&encode(&answer)), Some(answer));
        assert_eq!(decode::<Answer>(b""), None);
    }
}
