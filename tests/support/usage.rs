//! What a process has used, as /proc says.

use std::fs;

use anyhow::{Context as _, Result};

/// User and system time of a process so far, in seconds.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field, the name, may hold spaces; it ends with the last parenthesis.
    let (_, rest) = stat.rsplit_once(')').context("an odd /proc/PID/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |field: usize| -> Result<f64> { Ok(fields.get(field).context("a short line")?.parse()?) };
    // Linux shows hundredths of a second to programs, whatever the kernel counts by.
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

/// Resident set of a process in MiB.
pub fn resident_mebibytes(pid: u32) -> Result<f64> {
    mebibytes(pid, "VmRSS:")
}

/// The largest resident set that a process has had, in MiB.
pub fn peak_mebibytes(pid: u32) -> Result<f64> {
    mebibytes(pid, "VmHWM:")
}

fn mebibytes(pid: u32, label: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let (_, rest) = status.split_once(label).with_context(|| format!("no {label} in\n{status}"))?;
    let kibibytes: f64 = rest.split_whitespace().next().context("nothing follows")?.parse()?;
    Ok(kibibytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_uses_time_and_memory() {
        let own = std::process::id();
        let before = cpu_seconds(own).unwrap();
        let mut work = vec![1_u8; 64 << 20];
        while cpu_seconds(own).unwrap() == before {
            work.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3));
        }
        assert!(peak_mebibytes(own).unwrap() > 64.0, "{}", work[0]);
        assert!(resident_mebibytes(own).unwrap() <= peak_mebibytes(own).unwrap());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(cpu_seconds(u32::MAX).is_err() && resident_mebibytes(u32::MAX).is_err());
    }
}
