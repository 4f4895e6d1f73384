//! Conditions of a MultiNetworkService: types, reasons, and functions to set and find them.
//!
//! Every reason belongs to one type and implies one status, so that code cannot combine them
//! wrongly. Types, and reasons for the good status, are those of the Gateway API where it has them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use strum::{IntoStaticStr, VariantArray};

use crate::schema::MESSAGE_LENGTH;

/// Type of a condition of a MultiNetworkService. Conditions of other types belong to other writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
pub enum ConditionType {
    /// Whether the object is valid.
    Accepted,
    /// Whether all objects that the object refers to exist and can be used.
    ResolvedRefs,
    /// Whether the slices match the object's spec.
    Programmed,
    /// Whether at least one endpoint is ready. It is not named Ready, because tools that wait for
    /// Ready would take a service scaled to zero for broken.
    EndpointsReady,
    /// Whether pods on one network have the same address. True is bad.
    AddressConflict,
    /// Whether a limit keeps addresses from being published. True is bad. The condition is absent
    /// otherwise.
    Capped,
}

impl ConditionType {
    /// Returns the type's name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
pub enum Status {
    /// `True`: the condition holds.
    True,
    /// `False`: the condition does not hold.
    False,
    /// `Unknown`: the controller has not checked yet, or could not.
    Unknown,
}

impl Status {
    /// Returns the status' name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Reason of a condition, which implies the condition's type and status.
/// Converts into its name in the API, in CamelCase.
pub trait Reason: Copy + Into<&'static str> {
    /// Type of the condition.
    const TYPE: ConditionType;

    /// Returns the status of the condition.
    fn status(self) -> Status;
}

/// Declares the reasons of one condition type.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident for $type:ident { $($(#[$reason_doc:meta])* $reason:ident => $status:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
        pub enum $name {
            $($(#[$reason_doc])* $reason,)*
        }

        impl Reason for $name {
            const TYPE: ConditionType = ConditionType::$type;

            fn status(self) -> Status {
                match self {
                    $(Self::$reason => Status::$status,)*
                }
            }
        }
    };
}

reasons! {
    /// Reasons of [`ConditionType::Accepted`].
    AcceptedReason for Accepted {
        /// True: the object is valid.
        Accepted => True,
        /// False: the object breaks a rule, for example one added after the object was created.
        Invalid => False,
        /// Unknown: the controller has not processed the object yet.
        Pending => Unknown,
    }
}

reasons! {
    /// Reasons of [`ConditionType::ResolvedRefs`].
    ResolvedRefsReason for ResolvedRefs {
        /// True: all objects that the object refers to exist.
        ResolvedRefs => True,
        /// False: the object that describes a network does not exist.
        NetworkNotFound => False,
        /// False: no pod of the namespace can use a network, because it is a ResourceClaimTemplate
        /// of another namespace.
        NetworkNotUsable => False,
        /// False: the API server does not serve the kind of a network, because Multus or DRA is not
        /// installed.
        NetworkKindNotServed => False,
        /// False: the core Service to mirror to does not exist.
        MirrorNotFound => False,
        /// False: the core Service to mirror to has a selector or a cluster IP.
        MirrorNotUsable => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::Programmed`].
    ProgrammedReason for Programmed {
        /// True: the slices match the object's spec.
        Programmed => True,
        /// True: the object has no selector, so that another program writes its slices.
        NoSelector => True,
        /// Unknown: the controller is still writing the slices.
        Pending => Unknown,
        /// False: the object is not accepted, so that the controller writes no slices.
        Invalid => False,
        /// False: a write of the slices failed, and is retried.
        WriteFailed => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::EndpointsReady`].
    EndpointsReadyReason for EndpointsReady {
        /// True: at least one endpoint is ready.
        EndpointsReady => True,
        /// False: the selector matches no pod.
        NoPods => False,
        /// False: no selected pod has an address on the networks.
        NoAddresses => False,
        /// False: none of the endpoints is ready.
        NoneReady => False,
        /// False: the object has no selector, and no slice names it.
        NoSlices => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::AddressConflict`].
    AddressConflictReason for AddressConflict {
        /// True: pods of one network and namespace have the same address. The controller publishes
        /// it for one of them only.
        DuplicateAddress => True,
        /// True: a pod of another namespace reports an address that the object publishes. The
        /// controller still publishes it.
        OtherNamespace => True,
        /// False: every address belongs to one pod.
        NoConflict => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::Capped`].
    CappedReason for Capped {
        /// True: a pod has more addresses on a network than the limit per pod and network.
        AddressesPerPod => True,
        /// True: the object's pods have more addresses than the limit per object.
        AddressesPerService => True,
        /// True: the objects of the namespace have more addresses than the limit per namespace.
        AddressesPerNamespace => True,
    }
}

/// Sets the condition of the reason's type. Returns whether anything changed.
///
/// `lastTransitionTime` becomes `now` if the status changes, and stays otherwise. A message longer
/// than the API allows (32768 characters) is cut. Conditions of other types stay as they are.
pub fn upsert<R: Reason>(
    conditions: &mut Vec<Condition>,
    reason: R,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> bool {
    let name: &str = reason.into();
    let mut new = Condition {
        type_: R::TYPE.as_str().to_owned(),
        status: reason.status().as_str().to_owned(),
        reason: name.to_owned(),
        message: message.chars().take(MESSAGE_LENGTH).collect(),
        observed_generation: generation,
        last_transition_time: now.clone(),
    };
    let Some(old) = conditions.iter_mut().find(|condition| condition.type_ == new.type_) else {
        conditions.push(new);
        return true;
    };
    if old.status == new.status {
        new.last_transition_time = old.last_transition_time.clone();
    }
    let changed = *old != new;
    *old = new;
    changed
}

/// Removes the condition of the type `kind`, if there is one.
pub fn remove(conditions: &mut Vec<Condition>, kind: ConditionType) {
    conditions.retain(|condition| condition.type_ != kind.as_str());
}

/// Returns the condition of the type `kind`; `None` if there is none.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let mut conditions = Vec::new();
        assert!(upsert(&mut conditions, ProgrammedReason::Pending, "writing", Some(1), &at(10)));
        assert_eq!(conditions[0].last_transition_time, at(10));

        assert!(upsert(&mut conditions, ProgrammedReason::Programmed, "", Some(1), &at(20)));
        assert_eq!(conditions[0].last_transition_time, at(20));

        assert!(upsert(&mut conditions, ProgrammedReason::NoSelector, "", Some(2), &at(30)));
        assert_eq!(
            (conditions[0].reason.as_str(), conditions[0].observed_generation),
            ("NoSelector", Some(2))
        );
        assert_eq!(conditions[0].last_transition_time, at(20), "True before and after");
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn setting_a_condition_again_changes_nothing() {
        let mut conditions = Vec::new();
        upsert(&mut conditions, AcceptedReason::Accepted, "fine", Some(1), &at(10));
        assert!(!upsert(&mut conditions, AcceptedReason::Accepted, "fine", Some(1), &at(20)));
        assert!(upsert(&mut conditions, AcceptedReason::Accepted, "fine", Some(2), &at(20)));
        assert!(upsert(&mut conditions, AcceptedReason::Accepted, "very fine", Some(2), &at(20)));
    }

    #[test]
    fn other_types_are_left_alone() {
        let mut conditions = Vec::new();
        upsert(&mut conditions, AcceptedReason::Accepted, "", None, &at(10));
        let before = conditions.clone();
        upsert(&mut conditions, AddressConflictReason::DuplicateAddress, "10.0.0.1", None, &at(20));
        assert_eq!(conditions[..1], before);
        assert_eq!(find(&conditions, ConditionType::AddressConflict).unwrap().status, "True");
        assert_eq!(find(&conditions, ConditionType::Programmed), None);
        assert_eq!(find(&conditions, ConditionType::Accepted).unwrap().reason, "Accepted");
    }

    #[test]
    fn a_long_message_is_cut_to_the_length_of_its_field() {
        let mut conditions = Vec::new();
        upsert(&mut conditions, AcceptedReason::Invalid, &"é".repeat(40_000), None, &at(10));
        assert_eq!(conditions[0].message.chars().count(), MESSAGE_LENGTH);
    }
}
