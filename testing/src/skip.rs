//! Skipping of tests that cannot run on every machine.

use std::fs::File;
use std::io::Write as _;

/// Ends the test and counts it as skipped, with the reason. Only for what a machine may lack (a
/// GPU, root), never for a program that `make test` installs or builds.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skip::record(module_path!(), line!(), &format!($($reason)+));
        return Ok(());
    }};
}

/// Prints the reason, and appends it to the file that `MULTINET_SKIP_LOG` names. A run of all tests
/// counts these lines, because the test harness counts skipped tests as passed.
pub fn record(module: &str, line: u32, reason: &str) {
    eprintln!("skipped: {module}:{line}: {reason}");
    let Some(path) = std::env::var_os("MULTINET_SKIP_LOG") else {
        return;
    };
    let logged = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{module}:{line}: {reason}\n").as_bytes()));
    if let Err(error) = logged {
        eprintln!("cannot write to {}: {error}", path.display());
    }
}
