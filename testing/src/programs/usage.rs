//! Resource usage of processes, read from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Returns user and system time of a process so far, in seconds.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field, the name, may contain spaces. It ends at the last parenthesis.
    let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat has no name in parentheses")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |field: usize| -> Result<f64> { Ok(fields.get(field).context("too few fields")?.parse()?) };
    // Linux reports hundredths of a second to programs, whatever its own clock tick.
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

/// Returns a process and all its descendants.
pub fn family(pid: u32) -> Result<Vec<u32>> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        // The process may have ended by now.
        let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else { continue };
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parents.push((process, parent.context("/proc/PID/stat has no parent")?));
    }
    let mut family = vec![pid];
    let mut seen = 0;
    while let Some(&parent) = family.get(seen) {
        family.extend(parents.iter().filter(|&&(_, of)| of == parent).map(|&(child, _)| child));
        seen += 1;
    }
    Ok(family)
}

/// Returns user and system time of these processes so far, in seconds, like [`cpu_seconds`], but
/// with a resolution of nanoseconds.
pub fn precise_cpu_seconds(pids: &[u32]) -> Result<f64> {
    let mut seconds = 0.0;
    for &pid in pids {
        let clock = clock_getcpuclockid(Pid::from_raw(pid.try_into()?));
        let time = clock.and_then(clock_gettime).with_context(|| format!("no CPU clock of process {pid}"))?;
        seconds += Duration::from(time).as_secs_f64();
    }
    Ok(seconds)
}

/// Returns the resident set of a process, in MiB.
pub fn resident_mebibytes(pid: u32) -> Result<f64> {
    mebibytes(pid, "VmRSS:")
}

/// Returns the largest resident set that a process has had, in MiB.
pub fn peak_mebibytes(pid: u32) -> Result<f64> {
    mebibytes(pid, "VmHWM:")
}

fn mebibytes(pid: u32, label: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let (_, rest) = status.split_once(label).with_context(|| format!("no {label} in\n{status}"))?;
    let kibibytes: f64 = rest.split_whitespace().next().context("the line has no value")?.parse()?;
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
    fn children_belong_to_the_family() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(std::process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(family.starts_with(&[std::process::id()]) && family.contains(&child.id()), "{family:?}");
    }

    #[test]
    fn precise_cpu_time_grows_within_milliseconds() {
        let own = [std::process::id()];
        let before = precise_cpu_seconds(&own).unwrap();
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
        assert!(precise_cpu_seconds(&own).unwrap() > before);
    }

    #[test]
    fn a_missing_process_has_no_usage() {
        assert!(cpu_seconds(u32::MAX).is_err() && resident_mebibytes(u32::MAX).is_err());
    }
}
