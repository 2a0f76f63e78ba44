// Apply the chosen theme before the page is drawn; without a choice, CSS follows the system.
try {
  const theme = localStorage.getItem("loadline-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled: the system's theme */ }
