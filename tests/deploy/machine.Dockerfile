# A small machine with systemd and with what is in both images of fedbnsl; the units come from deploy/systemd.
FROM fedbnsl-systemd:local
# What would touch the kernel that a privileged container shares with its host, or waits for hardware.
RUN cd /etc/systemd/system && for unit in \
      systemd-sysctl.service systemd-modules-load.service systemd-udevd.service systemd-udev-trigger.service \
      systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-remount-fs.service systemd-random-seed.service \
      systemd-timesyncd.service systemd-logind.service console-getty.service getty.target \
      apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
      dev-hugepages.mount dev-mqueue.mount sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
      sys-fs-fuse-connections.mount; \
    do ln -sf /dev/null "$unit"; done
COPY --from=fedbnsl-coordinator:debian /opt/fedbnsl /opt/fedbnsl
COPY --from=fedbnsl-site:debian /opt/fedbnsl /opt/fedbnsl
ENV container=docker
STOPSIGNAL SIGRTMIN+3
WORKDIR /source
# A container gets its cgroups read-only. And mounts of one process are seen by no other, which systemd takes for granted
# where it hands credentials to services.
CMD ["sh", "-c", "for at in $(awk '$2 ~ \"^/sys/fs/cgroup\" { print $2 }' /proc/mounts); do mount -o remount,bind,rw $at; done; mount --make-rshared /; exec /sbin/init"]
