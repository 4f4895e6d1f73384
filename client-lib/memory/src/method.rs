//! The choice of the method by which frames reach the memory of a GPU. It needs no device.

use std::fmt;
use std::str::FromStr;

/// The method by which an RDMA device accesses the memory of a GPU.
///
/// # Examples
///
/// ```
/// use multinet_memory::Method;
///
/// // As the log, `--gpu-method` and MULTINET_GPU_METHOD call it.
/// assert_eq!(Method::PeerMemory.to_string(), "peermem");
/// assert!(Method::DmaBuf < Method::Staging, "what is tried first comes first");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The driver of the GPU exports the memory, and that of the RDMA device imports it. It needs
    /// nothing but a recent kernel.
    DmaBuf,
    /// A kernel module (`nvidia_peermem`) tells the RDMA driver where addresses of the GPU's memory
    /// lie.
    PeerMemory,
    /// The device does not access it: frames are copied through the machine's memory. TCP has only
    /// this method.
    Staging,
}

/// Whether one method is forced.
///
/// # Examples
///
/// ```
/// use multinet_memory::{Forced, Method};
///
/// // From an option of the program's own.
/// assert_eq!("dma-buf".parse(), Ok(Forced::To(Method::DmaBuf)));
/// assert_eq!("auto".parse(), Ok(Forced::No));
/// assert!("gpudirect".parse::<Forced>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forced {
    /// No method is forced: the first one that works is used, in the order of [`Method`].
    #[default]
    No,
    /// Only this method is used: where it fails, no other one is tried.
    To(Method),
}

/// The facts about a GPU and an RDMA device that decide the method.
///
/// # Examples
///
/// ```
/// use multinet_memory::{Findings, Forced, Method, choose};
///
/// // A GPU in a virtual machine, as a rule.
/// let refused = || Err("the driver does not export it".to_owned());
/// let findings = Findings { export: refused(), import: Ok(()), peer_memory: None };
/// assert_eq!(choose(&findings, Forced::No).candidates, [Method::Staging]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Whether the GPU's driver can export its memory, or the reason why not.
    pub export: Result<(), String>,
    /// Whether the RDMA device can import memory of other devices, or the reason why not.
    pub import: Result<(), String>,
    /// The loaded kernel module that resolves addresses of the GPU for RDMA; `None` without one.
    pub peer_memory: Option<&'static str>,
}

/// The methods to try, and the reasons against the others.
///
/// # Examples
///
/// ```
/// use multinet_memory::{Findings, Forced, Method, choose};
///
/// let findings = Findings { export: Ok(()), import: Ok(()), peer_memory: None };
/// let choice = choose(&findings, Forced::No);
/// assert_eq!(choice.candidates, [Method::DmaBuf, Method::Staging]);
/// for (method, reason) in choice.rejected {
///     println!("not by {method}: {reason}");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The methods to try, in this order; the first that works is used. The last one is
    /// [`Method::Staging`], unless another one is forced.
    pub candidates: Vec<Method>,
    /// The methods that cannot work, each with the reason.
    pub rejected: Vec<(Method, String)>,
}

/// Decides which methods to try. A forced method is always tried, so that its own failure tells why
/// it does not work.
///
/// ```
/// use multinet_memory::{Findings, Forced, Method, choose};
///
/// let findings = Findings { export: Ok(()), import: Ok(()), peer_memory: None };
/// // Nothing speaks for it, and it is tried all the same: its failure says why.
/// let choice = choose(&findings, Forced::To(Method::PeerMemory));
/// assert_eq!(choice.candidates, [Method::PeerMemory]);
/// ```
pub fn choose(findings: &Findings, forced: Forced) -> Choice {
    let mut choice = Choice { candidates: Vec::new(), rejected: Vec::new() };
    if let Forced::To(method) = forced {
        choice.candidates.push(method);
        return choice;
    }
    for (method, _) in Method::ALL {
        match reason_against(method, findings) {
            None => choice.candidates.push(method),
            Some(reason) => choice.rejected.push((method, reason)),
        }
    }
    choice
}

/// Returns the reason why a method cannot work by these findings, or `None` if it may.
fn reason_against(method: Method, findings: &Findings) -> Option<String> {
    match method {
        Method::DmaBuf => [&findings.export, &findings.import].into_iter().find_map(|it| it.clone().err()),
        Method::PeerMemory if findings.peer_memory.is_none() => {
            Some("neither nvidia_peermem nor nv_peer_mem is loaded".to_owned())
        }
        Method::PeerMemory | Method::Staging => None,
    }
}

impl Method {
    const ALL: [(Self, &'static str); 3] =
        [(Self::DmaBuf, "dma-buf"), (Self::PeerMemory, "peermem"), (Self::Staging, "staging")];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = Self::ALL[*self as usize];
        f.write_str(name)
    }
}

impl FromStr for Forced {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Method::ALL.into_iter().find(|(_, name)| *name == text);
        match (text, known) {
            (_, Some((method, _))) => Ok(Self::To(method)),
            ("auto", None) => Ok(Self::No),
            _ => Err(format!("{text:?} is none of auto, dma-buf, peermem, staging")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Method::{DmaBuf, PeerMemory, Staging};

    fn findings(export: bool, import: bool, peer_memory: bool) -> Findings {
        let may = |may: bool, reason: &str| if may { Ok(()) } else { Err(reason.to_owned()) };
        Findings {
            export: may(export, "not exported"),
            import: may(import, "not imported"),
            peer_memory: peer_memory.then_some("nvidia_peermem"),
        }
    }

    #[test]
    fn findings_decide_the_candidates_and_the_reasons() {
        /// Export, import, peer memory; the expected candidates, and the beginnings of the reasons.
        type Case = (bool, bool, bool, &'static [Method], &'static [(Method, &'static str)]);
        let table: [Case; 6] = [
            (true, true, true, &[DmaBuf, PeerMemory, Staging], &[]),
            (true, true, false, &[DmaBuf, Staging], &[(PeerMemory, "neither ")]),
            (true, false, true, &[PeerMemory, Staging], &[(DmaBuf, "not imported")]),
            (false, true, true, &[PeerMemory, Staging], &[(DmaBuf, "not exported")]),
            (false, false, true, &[PeerMemory, Staging], &[(DmaBuf, "not exported")]),
            (false, false, false, &[Staging], &[(DmaBuf, "not exported"), (PeerMemory, "neither ")]),
        ];
        for (export, import, peer_memory, candidates, rejected) in table {
            let choice = choose(&findings(export, import, peer_memory), Forced::No);
            assert_eq!(choice.candidates, candidates);
            let matches =
                |((method, reason), (expected, beginning)): (&(Method, String), &(Method, &str))| {
                    method == expected && reason.starts_with(beginning)
                };
            assert!(
                choice.rejected.len() == rejected.len() && choice.rejected.iter().zip(rejected).all(matches),
                "{choice:?}"
            );
        }
    }

    #[test]
    fn a_forced_method_is_the_only_candidate() {
        for all in [true, false] {
            for method in [DmaBuf, PeerMemory, Staging] {
                let choice = choose(&findings(all, all, all), Forced::To(method));
                assert_eq!(choice, Choice { candidates: vec![method], rejected: Vec::new() });
            }
        }
    }

    #[test]
    fn method_names_are_parsed_and_printed() {
        for (method, name) in Method::ALL {
            assert_eq!((method.to_string(), name.parse()), (name.to_owned(), Ok(Forced::To(method))));
        }
        assert_eq!("auto".parse(), Ok(Forced::No));
        assert!("gpu".parse::<Forced>().unwrap_err().contains("\"gpu\" is none of auto, dma-buf"));
    }
}
