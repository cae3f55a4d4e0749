//! Engines, virtual machines, service managers and what makes another enclosure (`C-024`, `R-69`).

use guard_common::ActionClass::EnclosureControl;

use super::{Row, row};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(EnclosureControl, "docker docker-compose podman podman-compose podman-remote nerdctl finch", "", "drives containers, and with them the host", "docker ps", ""),
    row(EnclosureControl, "buildah buildctl kaniko img ctr crictl runc crun youki kata-runtime runsc", "", "drives containers underneath an engine", "ctr run x", ""),
    row(EnclosureControl, "kubectl oc k9s helm helmfile kustomize-controller", "", "drives a cluster's containers", "kubectl exec x", ""),
    row(EnclosureControl, "minikube kind k3d k3s k0s microk8s kubeadm colima limactl lima multipass orb rdctl", "", "drives a machine or a cluster on it", "minikube start", ""),
    row(EnclosureControl, "lxc lxc-* lxd incus systemd-nspawn machinectl", "", "drives system containers", "machinectl shell x", ""),
    row(EnclosureControl, "qemu-system-* qemu-kvm kvm firecracker jailer cloud-hypervisor crosvm kvmtool lkvm vmspawn systemd-vmspawn", "", "starts a virtual machine", "qemu-system-x86_64 -m 1", ""),
    row(EnclosureControl, "qemu-nbd qemu-storage-daemon guestfish guestmount virt-*", "", "reaches into a virtual machine's disks", "virt-install x", ""),
    row(EnclosureControl, "virsh vagrant VBoxManage VBoxHeadless vboxmanage vmrun prlctl tart quickemu", "", "drives virtual machines", "virsh start x", ""),
    row(EnclosureControl, "unshare nsenter chroot pivot_root switch_root proot fakechroot schroot", "", "makes or enters another view of the machine", "nsenter -t 1 x", ""),
    row(EnclosureControl, "bwrap firejail nsjail minijail0 landrun srt toolbox distrobox flatpak-spawn", "", "makes an enclosure, or leaves the one it is in", "bwrap x", ""),
    row(EnclosureControl, "systemd-run systemd-mount run0", "", "starts a unit outside of the agent", "systemd-run --user sh", ""),
    row(EnclosureControl, "systemctl", "start, stop, restart, try-restart, reload, reload-or-restart, kill, enable, disable, mask, unmask, link, edit, set-property, set-environment, import-environment, daemon-reload, daemon-reexec, isolate, reboot, poweroff, halt, kexec, suspend, preset, revert, add-wants, add-requires", "drives units, which run outside of the agent", "systemctl --user start x", "systemctl status x"),
    row(EnclosureControl, "service initctl rc-service sv supervisorctl launchctl", "", "drives services", "service x start", ""),
    row(EnclosureControl, "at batch crontab atrm anacron", "", "what runs later runs outside of the agent", "at now", ""),
    row(EnclosureControl, "busctl gdbus dbus-send qdbus", "call, set-property, emit, monitor, --dest, --method", "drives services over D-Bus", "busctl --user call x", "busctl list"),
    row(EnclosureControl, "gio", "open, launch, mount", "asks the desktop to run something", "gio open x", "gio list"),
    row(EnclosureControl, "tmux screen zellij", "", "a server outside of the agent may hold its terminals", "tmux send-keys x", ""),
    row(EnclosureControl, "xdotool wtype ydotool", "", "types into other programs", "xdotool key x", ""),
    row(EnclosureControl, "gh", "codespace, cs", "drives a machine elsewhere", "gh cs create", "gh status"),
    row(EnclosureControl, "devcontainer devpod gitpod coder", "", "drives a workstation elsewhere", "devcontainer up", ""),
    row(EnclosureControl, "aws", "ec2 run-instances, ec2 start-instances, ec2 stop-instances, ec2 terminate-instances, ssm start-session, ssm send-command, ecs execute-command, ecs run-task, lambda invoke", "drives machines elsewhere", "aws ec2 run-instances", "aws ec2 describe-instances"),
    row(EnclosureControl, "gcloud az", "compute instances create, compute instances start, compute instances stop, compute instances delete, compute ssh, container clusters create, vm create, vm start, vm stop, vm run-command", "drives machines elsewhere", "gcloud compute ssh x", "gcloud compute instances list"),
    row(EnclosureControl, "terraform tofu pulumi", "apply, destroy, up, import, taint", "changes machines elsewhere", "terraform apply", "terraform plan"),
    row(EnclosureControl, "adb emulator avdmanager", "", "drives a phone or its emulator", "adb shell x", ""),
];
