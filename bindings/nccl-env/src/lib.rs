//! Environment plugin of NCCL (since 2.28), which NCCL asks for its variables in the place of
//! `getenv`.
//!
//! A variable that is set keeps its value. Of the others, the plugin knows those by which NCCL uses
//! this pod's second NICs: `NCCL_SOCKET_IFNAME`, `NCCL_IB_HCA`, and the one that chooses the row of
//! the GID table. It says once in NCCL's log which ones it has set.
//!
//! ```text
//!   init ──> Pod::read, Plan::of ──> answers
//!   getEnv(name) ──> getenv(name), or else the answer
//!   finalize ──> answers are dropped
//! ```
//!
//! NCCL finds the library by `NCCL_ENV_PLUGIN=multinet` as `libnccl-env-multinet.so`, which is this
//! library's file name once it is copied, or by its path. The interface is that of
//! `plugins/env/example/nccl` in NVIDIA/nccl; versions 1 and 2 differ in that NCCL passes its
//! logger to the latter. NCCL loads and unloads the library, so that it has no threads and leaves
//! nothing behind.

#![allow(unsafe_code, reason = "the interface is C's")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_ulong};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use multinet_rails::env::{Framework, Plan, Request};
use multinet_rails::{Pod, Sources};

/// Value of `ncclResult_t`.
type NcclResult = c_int;

/// Logger of NCCL: level, subsystems, file, line, and then as printf.
type Logger = unsafe extern "C" fn(
    level: c_int,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    ...
);

const SUCCESS: NcclResult = 0;
const LOG_WARN: c_int = 2;
const LOG_INFO: c_int = 3;
/// Subsystems `NCCL_INIT` and `NCCL_ENV`.
const SUBSYSTEMS: c_ulong = 1 | 128;

/// Version 1 of the interface, `ncclEnv_v1_t`.
#[derive(Debug)]
#[repr(C)]
pub struct EnvV1 {
    name: &'static c_char,
    init: extern "C" fn(u8, u8, u8, *const c_char) -> NcclResult,
    finalize: extern "C" fn() -> NcclResult,
    get_env: unsafe extern "C" fn(*const c_char) -> *const c_char,
}

/// Version 2 of the interface, `ncclEnv_v2_t`.
#[derive(Debug)]
#[repr(C)]
pub struct EnvV2 {
    name: &'static c_char,
    init: unsafe extern "C" fn(u8, u8, u8, *const c_char, Option<Logger>) -> NcclResult,
    finalize: extern "C" fn() -> NcclResult,
    get_env: unsafe extern "C" fn(*const c_char) -> *const c_char,
}

/// Plugin's name in NCCL's log, with its terminating zero.
static NAME: [c_char; 9] = {
    let bytes = *b"multinet\0";
    let mut name = [0; 9];
    let mut at = 0;
    while at < name.len() {
        name[at] = bytes[at] as c_char;
        at += 1;
    }
    name
};

/// Plugin for NCCL 2.28 and later, under the name that NCCL looks for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclEnvPlugin_v1: EnvV1 = EnvV1 { name: &NAME[0], init: init_v1, finalize, get_env };

/// Plugin for later versions of NCCL, which prefer it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclEnvPlugin_v2: EnvV2 = EnvV2 { name: &NAME[0], init: init_v2, finalize, get_env };

/// Values of variables that are not set, between `init` and `finalize`.
///
/// A value stays where it is until `finalize`, as the interface demands. Locking cannot fail: no
/// code that holds the lock panics, and a poisoned lock is used all the same.
static ANSWERS: Mutex<BTreeMap<CString, CString>> = Mutex::new(BTreeMap::new());

extern "C" fn init_v1(_major: u8, _minor: u8, _patch: u8, _suffix: *const c_char) -> NcclResult {
    learn();
    SUCCESS
}

/// Learns the answers, and logs them once.
///
/// # Safety
///
/// `logger` is NCCL's, or null.
unsafe extern "C" fn init_v2(
    _major: u8,
    _minor: u8,
    _patch: u8,
    _suffix: *const c_char,
    logger: Option<Logger>,
) -> NcclResult {
    let (level, line) = learn();
    // An inner zero would cut the line off; no name or reason has one.
    if let (Some(logger), Ok(line)) = (logger, CString::new(line)) {
        // SAFETY: The caller promises that it is NCCL's logger, which formats as printf. The format
        // takes one string, and both strings outlive the call.
        unsafe { logger(level, SUBSYSTEMS, c"multinet".as_ptr(), 0, c"%s".as_ptr(), line.as_ptr()) };
    }
    SUCCESS
}

extern "C" fn finalize() -> NcclResult {
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    SUCCESS
}

/// Returns the value of a variable, or null.
///
/// # Safety
///
/// `name` is a string of C, or null.
unsafe extern "C" fn get_env(name: *const c_char) -> *const c_char {
    if name.is_null() {
        return ptr::null();
    }
    // SAFETY: `name` is a string of C. NCCL calls getenv itself without this plugin, under the same
    // condition: the program does not change its environment meanwhile.
    let set = unsafe { libc::getenv(name) };
    if !set.is_null() {
        return set;
    }
    // SAFETY: `name` is a string of C that the caller does not change during the call.
    let name = unsafe { CStr::from_ptr(name) };
    let answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    answers.get(name).map_or(ptr::null(), |value| value.as_ptr())
}

/// Learns the answers. Returns a line for NCCL's log, with its level. Does not unwind into C.
fn learn() -> (c_int, String) {
    let learnt = catch_unwind(|| {
        let pod = Pod::read(&Sources::default()).map_err(|error| error.to_string())?;
        let plan =
            plan(&pod, &|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()));
        let value = |(name, value): (&str, &str)| Some((CString::new(name).ok()?, CString::new(value).ok()?));
        let answers = plan.values().filter_map(value).collect();
        *ANSWERS.lock().unwrap_or_else(PoisonError::into_inner) = answers;
        Ok(summary(&plan))
    });
    let failed = |error: &str| (LOG_WARN, format!("multinet: no variable is set: {error}"));
    match learnt {
        Ok(Ok(line)) => (LOG_INFO, line),
        Ok(Err::<_, String>(error)) => failed(&error),
        Err(_) => failed("the facts about this pod could not be read"),
    }
}

/// Returns NCCL's variables for all rails of a pod: NCCL itself chooses those near to each GPU.
fn plan(pod: &Pod, set: &dyn Fn(&str) -> Option<String>) -> Plan {
    let rails = pod.rails.iter().collect();
    Plan::of(&Request { frameworks: &[Framework::Nccl], rails, pod, service: None, set })
}

fn summary(plan: &Plan) -> String {
    let set: Vec<String> = plan.values().map(|(name, value)| format!("{name}={value}")).collect();
    let left_out = plan.left_out().map(|(name, reason)| format!("; {name} is left out: {reason}"));
    let set =
        if set.is_empty() { "no variable is set".to_owned() } else { format!("sets {}", set.join(" ")) };
    let lost = plan.lost.iter().map(|reason| format!("; {reason}"));
    format!("multinet: {set}{}", left_out.chain(lost).collect::<String>())
}
