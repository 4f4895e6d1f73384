//! What the command lines of all binaries have in common.

use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

/// What clap says of a bad command line of `program`, as one line.
pub fn one_line(error: &clap::Error, program: &str) -> String {
    let text = error.to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    format!("{}; see {program} --help", first.join(" ").trim_start_matches("error: "))
}

/// How long a program that ends waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Ends `program`: writes what it has said, and why it could not start if that is so, in one line that says what, where,
/// and what to do; the exit status then is 2.
pub fn end(program: &str, outcome: Result<(), String>) -> ExitCode {
    let code = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            multinet_stderr::write_line(&format!("{program}: {}", message.replace('\n', " ")));
            ExitCode::from(2)
        }
    };
    multinet_stderr::flush(LAST_LINES);
    code
}

/// A time on the command line.
///
/// # Errors
///
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time as 500ms, 5s, 10m or 1h".to_owned();
    let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, value_parser = duration)]
        time: Duration,
    }

    fn time(text: &str) -> Result<Duration, String> {
        let args = Args::try_parse_from(["program", &format!("--time={text}")]);
        args.map(|args| args.time).map_err(|error| one_line(&error, "program"))
    }

    #[test]
    fn times_as_people_write_them() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["5", "-1s", "soon", ""] {
            let error = time(wrong).unwrap_err();
            assert!(error.contains("write a time as") || wrong.is_empty(), "{wrong:?}: {error}");
            assert!(error.ends_with("; see program --help") && !error.contains('\n'), "{wrong:?}: {error}");
        }
    }
}
